// Drives that do not keep what the engine wrote: a named error or a recovery from a mirror, never a silent
// continuation.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "tests/support/engine_world.h"
#include "tests/support/instrumented.h"
#include "tiering/store/root_record.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kSteps = 4;
const std::string kFile = aio::store_file_name(0);

struct MediaSetting {
  const char* name;
  uint32_t drives = 3;
  double host_state_share = 0;
  WeightTier weights = WeightTier::nvme;

  friend std::ostream& operator<<(std::ostream& out, const MediaSetting& setting) { return out << setting.name; }
};

class EngineMedia : public testing::TestWithParam<MediaSetting> {
 protected:
  EngineMedia() : world_(41, GetParam().drives, std::vector<uint64_t>(12, 3'000)) {
    world_.options.request.choices.host_state_share = GetParam().host_state_share;
    world_.options.request.choices.weights = GetParam().weights;
    CHECK(world_.create().ok());
    for (uint64_t step = 0;; ++step) {
      plain_.push_back(world_.plain());
      images_.emplace_back();
      for (uint32_t drive = 0; drive < drives(); ++drive) images_[step].push_back(bytes(drive));
      if (step == kSteps) break;
      Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
      CHECK(engine.ok() && world_.step(**engine, 0.01f).ok() && (*engine)->settle().ok());
      world_.plain_step(step + 1, 0.01f);
    }
  }

  uint32_t drives() const { return GetParam().drives; }
  aio::MemoryFile::Bytes& bytes(uint32_t drive) { return world_.folder(drive).bytes(kFile); }
  void restore() {
    for (uint32_t drive = 0; drive < drives(); ++drive) bytes(drive) = images_[kSteps][drive];
  }
  // The first root has number 1 and step 0.
  void rot_root(uint32_t drive, uint64_t step) {
    bytes(drive)[StoreLayout::root_offset((step + 1) % 2) + 99] ^= std::byte{16};
  }

  // What opening and two more steps say; or, where they say nothing, that the result is not what it should be.
  struct Outcome {
    Status status;
    uint64_t step = 0;
    std::string description;
  };
  Outcome go_on() {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    if (!engine.ok()) return {engine.status(), 0, ""};
    Outcome outcome{Status(), (*engine)->steps_done(), (*engine)->description()};
    world_.plain() = plain_[outcome.step];
    for (int i = 0; i < 2 && outcome.status.ok(); ++i) {
      const uint64_t number = (*engine)->steps_done() + 1;
      outcome.status = world_.step(**engine, 0.01f).status();
      world_.plain_step(number, 0.01f);
    }
    if (outcome.status.ok()) outcome.status = (*engine)->settle();
    if (!outcome.status.ok()) return outcome;
    EXPECT_EQ(world_.words_different(**engine), 0u) << "silently";
    return outcome;
  }
  void expect_refused(const std::string& part) {
    Outcome outcome = go_on();
    EXPECT_EQ(outcome.status.code(), Code::kCorrupt);
    EXPECT_NE(outcome.status.message().find(part), std::string::npos) << outcome.status.message();
  }

  EngineWorld world_;
  std::vector<PlainModel> plain_;  // by step
  std::vector<std::vector<aio::MemoryFile::Bytes>> images_;
};

TEST_P(EngineMedia, TakesANewestRootThatRottedFromAMirrorOrFallsBackToAVerifiedStepAndSaysSo) {
  for (uint32_t rotten = 1; rotten <= drives(); ++rotten) {
    SCOPED_TRACE(testing::Message() << "on " << rotten << " of " << drives() << " drives");
    restore();
    for (uint32_t drive = 0; drive < rotten; ++drive) rot_root(drive, kSteps);
    Outcome outcome = go_on();
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.step, rotten < drives() ? kSteps : kSteps - 1);
    const char* said = rotten < drives() ? "/drive0/rank0.tiles: root" : "every block of step 3 was verified";
    EXPECT_NE(outcome.description.find(said), std::string::npos) << outcome.description;
  }
}

TEST_P(EngineMedia, NamesATileWhoseOldBytesCameBack) {
  for (uint64_t age : {1, 2}) {
    restore();
    for (const StoreLayout::FileRange& piece : world_.pieces_of(3, Role::momentum)) {
      // The slot's own past, and what lay there two steps ago: the same tile, intact, and older.
      std::memcpy(bytes(piece.drive).data() + piece.file_offset_bytes,
                  images_[kSteps - 2 * age][piece.drive].data() + piece.file_offset_bytes, piece.length_bytes);
    }
    expect_refused("unit3");
  }
}

TEST_P(EngineMedia, NamesTilesThatWereSwapped) {
  for (Role role : {Role::weight, Role::master_low, Role::momentum, Role::variance}) {
    restore();
    std::vector<StoreLayout::FileRange> a = world_.pieces_of(2, role), b = world_.pieces_of(7, role);
    ASSERT_EQ(a.size(), 1u);
    ASSERT_EQ(a[0].length_bytes, b[0].length_bytes);
    std::swap_ranges(bytes(a[0].drive).begin() + static_cast<ptrdiff_t>(a[0].file_offset_bytes),
                     bytes(a[0].drive).begin() + static_cast<ptrdiff_t>(a[0].file_offset_bytes + a[0].length_bytes),
                     bytes(b[0].drive).begin() + static_cast<ptrdiff_t>(b[0].file_offset_bytes));
    // The later unit's gradients come first, but which tile is read first is not promised.
    expect_refused("unit");
  }
}

TEST_P(EngineMedia, NamesAFlippedBitOfEveryPlane) {
  for (Role role : {Role::weight, Role::master_low, Role::momentum, Role::variance}) {
    SCOPED_TRACE(name_of(role));
    restore();
    const StoreLayout::FileRange piece = world_.pieces_of(5, role).front();
    bytes(piece.drive)[piece.file_offset_bytes + 1234] ^= std::byte{1};
    expect_refused("unit5");
    expect_refused(text(" B at ", piece.file_offset_bytes, " of /drive", piece.drive, "/rank0.tiles"));
  }
}

// Any one accident to any one place of any one drive.
// No update looks at what a skipped step reads again.
TEST_P(EngineMedia, NamesAWeightThatRottedBeforeASkippedStepTakesItBack) {
  if (GetParam().weights != WeightTier::host || GetParam().host_state_share > 0) return;
  restore();
  world_.options.request.workload.clipping.skips_overflow = true;
  const StoreLayout::FileRange piece = world_.pieces_of(5, Role::weight).front();
  Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  bytes(piece.drive)[piece.file_offset_bytes + 1234] ^= std::byte{1};
  auto give = [&](uint32_t unit, uint16_t value) {
    const std::vector<uint16_t> values(3'000, value);
    return (*engine)->gradient(unit, 0, Dtype::bf16, std::as_bytes(std::span(values)));
  };
  ASSERT_TRUE((*engine)->begin({.groups = world_.groups}).ok());
  for (uint32_t unit = 11; unit > 0; --unit) ASSERT_TRUE(give(unit, 0x3c00).ok());
  const uint64_t eleven = (*engine)->plan().written_bytes() / 12 * 11;
  while ((*engine)->drive_bytes().written_bytes < eleven)
    std::this_thread::yield();  // all are updated ahead of the verdict
  ASSERT_TRUE(give(0, 0x7f80).ok());
  Result<StepReport> report = (*engine)->step();
  EXPECT_TRUE(!report.ok() || report->verdict == Verdict::skip);
  const Status settled = report.ok() ? (*engine)->settle() : report.status();
  EXPECT_EQ(settled.code(), Code::kCorrupt);
  EXPECT_NE(settled.message().find("unit5"), std::string::npos) << settled.message();
}

TEST_P(EngineMedia, NeverGoesOnSilentlyAfterAnyDamage) {
  uint64_t refused = 0, recovered = 0;
  for (uint64_t seed = 1; seed <= test::fewer(200); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    restore();
    const uint32_t drive = static_cast<uint32_t>(random() % drives());
    // Half of the accidents hit what the store says about itself.
    const uint64_t sector = random() % (random() % 2 ? bytes(drive).size() / 4096 : 48);
    if (random() % 2) {
      bytes(drive)[sector * 4096 + random() % 4096] ^= std::byte{1} << (random() % 8);
    } else {
      std::memcpy(&bytes(drive)[sector * 4096], &images_[random() % kSteps][drive][sector * 4096], 4096);
    }
    Outcome outcome = go_on();
    if (HasFailure()) return;
    if (!outcome.status.ok()) {
      ASSERT_EQ(outcome.status.code(), Code::kCorrupt) << outcome.status.message();
      ++refused;
      continue;
    }
    ++recovered;
    // A root that an only drive has forgotten looks like a crash just before it was written.
    const bool forgotten = drives() == 1 && sector * 4096 == StoreLayout::root_offset((kSteps + 1) % 2);
    ASSERT_TRUE(outcome.step == kSteps || forgotten || outcome.description.find("  store   ") != std::string::npos)
        << "an older step without a word";
  }
  if (test::kStride > 1) return;  // too few to have met both
  EXPECT_GT(refused, 5u);
  EXPECT_GT(recovered, 20u);
}

INSTANTIATE_TEST_SUITE_P(
    Settings, EngineMedia,
    testing::Values(MediaSetting{.name = "ThreeDrives"}, MediaSetting{.name = "OneDrive", .drives = 1},
                    MediaSetting{.name = "WeightsInHost", .weights = WeightTier::host},
                    MediaSetting{.name = "HalfInHost", .host_state_share = 0.5, .weights = WeightTier::host}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace penstock::engine
