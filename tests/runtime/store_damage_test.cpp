// A store on two folders of a real drive, one place of which is damaged at a time: a bit flipped, a sector zeroed, or
// what lay there some steps ago. It opens at its newest step, bit for bit; or file and offset are named, and the step
// before, where that is whole, is offered and can be gone back to.
//
// STORE_DAMAGES sets how many places (1000 for the full claim).
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <regex>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "runtime/engine/step_before.h"
#include "tests/aio/test_files.h"
#include "tests/support/engine_world.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kSteps = 4, kSector = 4096;
constexpr uint32_t kDrives = 2;
const std::string kFile = "/" + aio::store_file_name(0);

const char* asked_for() { return std::getenv("STORE_DAMAGES"); }
uint64_t damages() { return asked_for() ? std::strtoull(asked_for(), nullptr, 10) : 60; }

enum class Part { header, root, shape, table, tile };
constexpr std::array kParts{"header", "root", "shape", "table", "tile"};
enum class Accident { flipped, zeroed, stale };
constexpr std::array kAccidents{"flipped", "zeroed", "stale"};
enum class Outcome { newest, step_before, named };
constexpr std::array kOutcomes{"newest step", "step before offered", "nothing but its name"};

struct Place {
  Part part;
  uint32_t drive;
  uint64_t offset_bytes;  // of a sector
};

using Image = std::vector<std::byte>;

class StoreDamage : public testing::Test {
 protected:
  StoreDamage() : world_(47, kDrives, {3'000, 3'000, 70'000, 3'000, 3'000, 3'000}) {
    for (uint32_t drive = 0; drive < kDrives; ++drive) {
      folders_.push_back(scratch_ / text("drive", drive));
      std::filesystem::create_directory(folders_.back());
    }
    world_.options.drives = direct_drives(folders_);
    world_.options.request.choices.host_state_share = 0;
    world_.options.request.choices.weights = WeightTier::nvme;
    world_.options.request.workload.units[kFrozen].trainable = false;
    CHECK(world_.create().ok());
    for (uint64_t step = 0;; ++step) {
      plain_.push_back(world_.plain());
      images_.emplace_back();
      for (const std::string& folder : folders_) images_[step].push_back(read(folder + kFile));
      if (step == kSteps) break;
      Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
      CHECK(engine.ok() && world_.step(**engine, 0.01f).ok() && (*engine)->settle().ok());
      world_.plain_step(step + 1, 0.01f);
    }
    Result<aio::MadeIoEngine> made = aio::make_io_engine();
    Result<std::unique_ptr<aio::TileStore>> store =
        aio::TileStore::open(*made->engine, aio::direct_folders(folders_, aio::Access::read_only),
                             {.purpose = aio::OpenOptions::Purpose::inspect});
    CHECK(store.ok());
    layout_ = (*store)->layout();
    shape_ = (*store)->shape();
  }

  static Image read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    return {first, first + bytes.size()};
  }
  // Past the page cache, as the store reads it.
  static void write(const std::string& path, const Image& image) {
    Buffer bytes = Buffer::on_heap(image.size());
    std::memcpy(bytes.data(), image.data(), image.size());
    const int file = ::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC);
    CHECK(::pwrite(file, bytes.data(), image.size(), 0) == std::ssize(image), path);
    ::close(file);
  }

  Place place_of(std::mt19937_64& random) const {
    const auto drive = static_cast<uint32_t>(random() % kDrives);
    const auto copy = static_cast<uint32_t>(random() % 2);
    switch (random() % 6) {
      case 0:
        return {Part::header, drive, StoreLayout::header_offset(copy)};
      case 1:
        return {Part::root, drive, StoreLayout::root_offset(copy)};
      case 2:
        return {Part::shape, drive, StoreLayout::shape_offset(copy, shape_->encode().size())};
      case 3: {
        const TableGeometry& table = layout_->table();
        const auto page = static_cast<uint32_t>(random() % table.pages());
        return {Part::table, drive,
                layout_->page_offset(page, copy) + random() % (table.page_bytes() / kSector) * kSector};
      }
      default: {
        const auto tile = static_cast<TileId>(random() % shape_->tiles.size());
        const auto slot = static_cast<uint32_t>(random() % layout_->slots_of(tile));
        const uint64_t sector = random() % (layout_->tile_bytes(tile) / kSector);
        const StoreLayout::FileRange range = layout_->file_ranges(tile, slot, sector * kSector, kSector).front();
        return {Part::tile, range.drive, range.file_offset_bytes};
      }
    }
  }
  bool is_frozen(const Place& place) const {
    for (TileId tile = 0; tile < shape_->tiles.size(); ++tile) {
      if (shape_->kind(tile).updated) continue;
      for (const StoreLayout::FileRange& range : layout_->file_ranges(tile, 0, 0, layout_->tile_bytes(tile))) {
        const bool is_within = place.offset_bytes >= range.file_offset_bytes &&
                               place.offset_bytes < range.file_offset_bytes + range.length_bytes;
        if (range.drive == place.drive && is_within) return true;
      }
    }
    return false;
  }

  // Everything else is as it was after the newest step.
  void damage(const Place& place, Accident accident, std::mt19937_64& random) {
    std::vector<Image> images = images_[kSteps];
    const auto sector = images[place.drive].begin() + static_cast<ptrdiff_t>(place.offset_bytes);
    if (accident == Accident::flipped)
      sector[static_cast<ptrdiff_t>(random() % kSector)] ^= std::byte{1} << random() % 8;
    if (accident == Accident::zeroed) std::fill_n(sector, kSector, std::byte{0});
    if (accident == Accident::stale) {
      const Image& old = images_[random() % kSteps][place.drive];
      std::copy_n(old.begin() + static_cast<ptrdiff_t>(place.offset_bytes), kSector, sector);
    }
    for (uint32_t drive = 0; drive < kDrives; ++drive) write(folders_[drive] + kFile, images[drive]);
  }

  // What a run finds in the store: the refusal to read some of it, if there is one.
  Status expect_exact(uint64_t step) {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (!engine.ok()) return engine.status();
    EXPECT_EQ((*engine)->steps_done(), step);
    EXPECT_TRUE((*engine)->restored_state() == EngineWorld::trainer_state(step)) << "another state of the trainer";
    for (uint32_t unit = 0; unit < plain_[step].units.size(); ++unit) {
      const uint64_t elements = plain_[step].units[unit].p.size();
      std::vector<Role> roles{Role::weight};
      if (world_.trainable(unit)) roles = {Role::weight, Role::master_low, Role::momentum, Role::variance};
      for (Role role : roles) {
        std::vector<float> values(elements);
        const uint64_t size = role == Role::momentum || role == Role::variance ? sizeof(float) : sizeof(uint16_t);
        PENSTOCK_TRY((*engine)->read(unit, role, 0, std::as_writable_bytes(std::span(values)).first(elements * size)));
      }
    }
    EXPECT_EQ(world_.words_different(**engine, plain_[step]), 0u) << "not a word was said";
    return Status();
  }

  // `N B at OFFSET of FILE` is the damaged block.
  void expect_named(const Status& refusal, const Place& place) {
    EXPECT_EQ(refusal.code(), Code::kCorrupt);
    std::smatch found;
    const std::string& message = refusal.message();
    ASSERT_TRUE(std::regex_search(message, found, std::regex("([0-9]+) B at ([0-9]+) of ([^ ]+)"))) << message;
    const uint64_t offset = std::stoull(found[2]), end = offset + std::stoull(found[1]);
    EXPECT_EQ(found[3], folders_[place.drive] + kFile);
    EXPECT_TRUE(offset < place.offset_bytes + kSector && place.offset_bytes < end) << message;
  }

  // What the accident comes to. Two drives have twice what the store says about itself, so only tiles are lost.
  Outcome outcome_of(const Place& place) {
    const Status refusal = expect_exact(kSteps);
    if (refusal.ok()) return Outcome::newest;
    EXPECT_EQ(place.part, Part::tile);
    expect_named(refusal, place);
    const auto before = whole_step_before(kSteps, folders_);
    EXPECT_TRUE(before.ok()) << before.status().message();
    if (is_frozen(place)) {  // every step has it
      EXPECT_EQ(before.value(), std::nullopt);
      return Outcome::named;
    }
    EXPECT_EQ(before.value(), kSteps - 1);
    const Status went_back = go_back_to_step_before(kSteps - 1, folders_);
    EXPECT_TRUE(went_back.ok()) << went_back.message();
    const Status then = expect_exact(kSteps - 1);
    EXPECT_TRUE(then.ok()) << then.message();
    return Outcome::step_before;
  }

  static constexpr uint32_t kFrozen = 5;
  aio::ScratchFolder scratch_;
  std::vector<std::string> folders_;
  EngineWorld world_;
  std::optional<StoreLayout> layout_;
  std::optional<StoreShape> shape_;
  std::vector<PlainModel> plain_;           // by step
  std::vector<std::vector<Image>> images_;  // by step, by drive
};

TEST_F(StoreDamage, OfOnePlaceLosesNoStepThatIsStillThere) {
  std::array<std::array<std::array<uint64_t, 3>, 3>, 5> counts{};
  std::array<uint64_t, 3> outcomes{};
  for (uint64_t seed = 1; seed <= damages(); ++seed) {
    std::mt19937_64 random(seed);
    const Place place = place_of(random);
    const auto accident = static_cast<Accident>(random() % 3);
    const auto part = static_cast<size_t>(place.part), how = static_cast<size_t>(accident);
    SCOPED_TRACE(text("seed ", seed, ": ", kParts[part], " at ", place.offset_bytes, " of drive ", place.drive, " ",
                      kAccidents[how]));
    damage(place, accident, random);
    const auto outcome = static_cast<size_t>(outcome_of(place));
    if (HasFailure()) return;
    ++counts[part][how][outcome];
    ++outcomes[outcome];
  }
  EXPECT_GT(outcomes[0], damages() / 2);
  EXPECT_GT(outcomes[1], 0u);
  if (asked_for() == nullptr) return;
  for (size_t part = 0; part < kParts.size(); ++part) {
    for (size_t how = 0; how < kAccidents.size(); ++how) {
      std::cout << kParts[part] << " " << kAccidents[how] << ":";
      for (size_t outcome = 0; outcome < kOutcomes.size(); ++outcome)
        std::cout << " " << counts[part][how][outcome] << " " << kOutcomes[outcome] << (outcome < 2 ? "," : "\n");
    }
  }
}

}  // namespace
}  // namespace penstock::engine
