// Frozen units that rest in codes: what a store has of them, what read() gives, and what damage is told.
#include <gtest/gtest.h>

#include "tests/support/training_world.h"
#include "tiering/store/store_record.h"

namespace penstock::engine {
namespace {

const std::string kFile = aio::store_file_name(0);

class FrozenUnits : public testing::TestWithParam<BlockCode> {
 protected:
  FrozenUnits() : world_(17, 2, {5000, 200'003}) {
    world_.set_uses({{0}, {1}});
    world_.freeze(1, GetParam());
  }
  void open() {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  std::vector<uint16_t> read(uint64_t first, uint64_t count) {
    std::vector<uint16_t> values(count);
    const Status status = engine_->read(1, Role::weight, first, std::as_writable_bytes(std::span(values)));
    EXPECT_TRUE(status.ok()) << status.message();
    return values;
  }
  std::vector<uint16_t> expected(uint64_t first, uint64_t count) {
    std::vector<uint16_t> values;
    for (uint64_t i = first; i < first + count; ++i) values.push_back(world_.plain().units[1].high(i));
    return values;
  }

  TrainingWorld world_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(FrozenUnits, AreReadAsTheyAreComputedWithFromAnywhereToAnywhere) {
  for (const WeightTier rest : {WeightTier::host, WeightTier::nvme}) {
    for (const uint64_t tile_blocks : {1u, 3u}) {
      world_.options.request.choices.weights = rest;
      world_.options.request.choices.tile_elements = tile_blocks * kBlockElements;
      ASSERT_TRUE(world_.create(aio::CreateOptions::Existing::replace).ok());
      open();
      const std::pair<uint64_t, uint64_t> runs[] = {{0, 200'003},  {1, 1},           {63, 2},      {64, 64},
                                                    {100, 70'000}, {65'535, 65'538}, {200'002, 1}, {131'071, 3}};
      for (const auto& [first, count] : runs) {
        ASSERT_EQ(read(first, count), expected(first, count)) << count << " from " << first;
      }
      engine_.reset();
    }
  }
}

// A base that is larger than memory streams by once: its codes and their scales are made of the same values.
TEST_P(FrozenUnits, AreAskedForOnceWhenTheStoreIsMade) {
  for (const uint64_t tile_blocks : {1u, 3u, 64u}) {
    world_.options.request.choices.tile_elements = tile_blocks * kBlockElements;
    uint64_t asked = 0;
    auto initial = [&](uint32_t unit, uint64_t first, std::span<float> values) {
      if (unit == 1) asked += values.size();
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((first + i) % 7);
      return Status();
    };
    ASSERT_TRUE(Engine::create(world_.options, initial, aio::CreateOptions::Existing::replace).ok());
    EXPECT_EQ(asked, 200'003u) << tile_blocks << " blocks a tile";
  }
}

TEST_P(FrozenUnits, AreNotWrittenAndHaveNoOtherPlane) {
  ASSERT_TRUE(world_.create().ok());
  open();
  std::vector<uint16_t> values(10);
  EXPECT_EQ(engine_->write(1, Role::weight, 0, std::as_bytes(std::span(values))).message(),
            "write: unit unit1 is frozen");
  for (const Role role : {Role::master_low, Role::momentum, Role::weight_scale}) {
    EXPECT_EQ(engine_->read(1, role, 0, std::as_writable_bytes(std::span(values))).message(),
              text("read: unit unit1 has no ", name_of(role)));
  }
  EXPECT_FALSE(engine_->read(1, Role::weight, 200'000, std::as_writable_bytes(std::span(values))).ok());
}

TEST_P(FrozenUnits, MakeAStoreThatSaysSo) {
  ASSERT_TRUE(world_.create().ok());
  auto format = [&] { return format_of_record(std::span(world_.folder(0).bytes(kFile)).first(kRecordBytes)); };
  EXPECT_EQ(format(), kStoreFormatWithCodes);
  TrainingWorld other(17, 2, {5000, 200'003});
  other.set_uses({{0}, {1}});
  other.options.request.workload.units[1].trainable = false;
  other.options.drives = world_.options.drives;
  const Status refused = Engine::open(other.options).status();
  EXPECT_EQ(refused.code(), Code::kUsage);
  EXPECT_EQ(refused.message(), text("store: holds another model: the weights of unit unit1 are bf16 in the model, ",
                                    GetParam() == BlockCode::int8 ? "int8" : "nf4_pair", " in the store"));
}

// One bit of a scale.
TEST_P(FrozenUnits, AreComparedWithTheirChecksumsBeforeAnythingIsComputedWithThem) {
  for (const WeightTier rest : {WeightTier::host, WeightTier::nvme}) {
    world_.options.request.choices.weights = rest;
    ASSERT_TRUE(world_.create(aio::CreateOptions::Existing::replace).ok());
    // Tiles that no step writes come last: the end of a file is a scale, or what it is padded with.
    aio::MemoryFile::Bytes& bytes = world_.folder(1).bytes(kFile);
    const auto last = std::find_if(bytes.rbegin(), bytes.rend(), [](std::byte byte) { return byte != std::byte{0}; });
    ASSERT_TRUE(last != bytes.rend());
    *last ^= std::byte{1};
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    Status told = engine.status();
    if (engine.ok()) told = world_.evaluate(**engine).status();
    EXPECT_EQ(told.code(), Code::kCorrupt) << told.message();
    EXPECT_NE(told.message().find("/drive1/rank0.tiles"), std::string::npos) << told.message();
    EXPECT_NE(told.message().find("weight_scale"), std::string::npos) << told.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, FrozenUnits, testing::Values(BlockCode::int8, BlockCode::nf4),
                         [](const auto& code) { return std::string(name_of(code.param)); });

}  // namespace
}  // namespace penstock::engine
