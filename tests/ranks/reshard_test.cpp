#include "runtime/engine/ranks/reshard.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/engine/ranks/shard_map.h"
#include "runtime/engine/root_state.h"
#include "tests/support/store_world.h"

namespace penstock::engine {
namespace {

using Folders = std::vector<std::shared_ptr<aio::DriveFolder>>;
using Stores = std::vector<std::unique_ptr<aio::TileStore>>;

constexpr uint64_t kStep = 9, kUpdates = 7;

// Units of more and of fewer blocks than there are ranks, with a frozen one and one whose parameters leave gaps.
Workload small_model(MomentForm moments) {
  Workload model;
  model.form.moments = moments;
  const uint64_t elements[] = {10 * kBlockElements + 4096, 512, 3 * kBlockElements, kBlockElements + 256};
  for (uint64_t each : elements) {
    Unit unit;
    unit.name = text("u", model.units.size());
    unit.elements = each;
    unit.trainable = model.units.size() != 2;
    unit.parameters = {{"a", 0, each / 4}, {"b", round_up(each / 4, kMomentBlockElements), each / 2}};
    unit.parameters[1].elements = each - unit.parameters[1].first_element;
    for (Parameter& parameter : unit.parameters) parameter.name = unit.name + "." + parameter.name;
    if (each == 512) unit.parameters = {{"u1.a", 0, 100}};
    model.uses.push_back({.name = unit.name, .units = {static_cast<uint32_t>(model.units.size())}});
    model.units.push_back(unit);
  }
  return model;
}

EngineState counts_of(const Workload& model) {
  EngineState state = engine_state(model, kUpdates);
  state.counts[0].parameters[1] = 3;
  state.counts[3].unnamed = 2;
  return state;
}

// What no two places have alike.
Status random_fill(TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes) {
  std::mt19937_64 words(tile * 1'000'003 + plane * 7919 + first_byte);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(words());
  return Status();
}

class Reshard : public testing::TestWithParam<MomentForm> {
 protected:
  Reshard() : model_(small_model(GetParam())) {}

  Folders folders(const std::string& name, uint32_t drives) {
    Folders made;
    for (uint32_t i = 0; i < drives; ++i) {
      made.push_back(std::make_shared<aio::MemoryFolder>(text("/", name, i), ++drives_));
    }
    return made;
  }

  // Of one that is alone.
  Folders whole_store(uint64_t tile_elements = 2 * kBlockElements) {
    const Folders drives = folders("whole", 2);
    aio::CreateOptions options;
    options.memory = memory_.bytes();
    options.state_capacity = state_capacity_of(model_);
    options.payload = {.step = kStep,
                       .loss_scale = 64,
                       .config_hash = "before",
                       .engine_state = encode(counts_of(model_)),
                       .trainer_state = "trainer"};
    const StoreShape shape = StoreShape::of(model_, TileMap(model_, tile_elements));
    EXPECT_TRUE(aio::TileStore::create(engine(), drives, shape, options, random_fill).ok());
    return drives;
  }

  Stores open(const std::vector<Folders>& drives) {
    Stores stores;
    for (uint32_t rank = 0; rank < drives.size(); ++rank) {
      aio::OpenOptions options;
      options.purpose = aio::OpenOptions::Purpose::inspect;
      options.rank = rank;
      auto store = aio::TileStore::open(engine(), drives[rank], options);
      EXPECT_TRUE(store.ok()) << store.status().message();
      stores.push_back(std::move(*store));
    }
    return stores;
  }

  static NewSet wanted(uint32_t ranks, uint32_t group_ranks, const Folders& drives) {
    return {.ranks = ranks,
            .group_ranks = group_ranks,
            .drives = std::vector<Folders>(ranks, drives),
            .existing = aio::Existing::refuse,
            .config_hash = "after",
            .trainer_state = "trainer's own"};
  }

  // By tile: all its bytes.
  std::vector<std::vector<std::byte>> bytes_of(aio::TileStore& store) {
    std::vector<std::vector<std::byte>> tiles;
    for (TileId tile = 0; tile < store.shape().tiles.size(); ++tile) {
      Buffer memory = Buffer::on_heap(store.layout().tile_bytes(tile));
      BufferPool pool(Tier::host, memory.bytes(), memory.size_bytes());
      const auto reading = store.begin_read(tile);
      const Result<Lease> read = engine().read(reading->extents, *pool.try_lease(), IoEngine::kWhenever).wait();
      EXPECT_TRUE(read.ok()) << read.status().message();
      store.end_read(reading->place);
      tiles.emplace_back(read->bytes().begin(), read->bytes().end());
    }
    return tiles;
  }

  aio::QueuedIoEngine& engine() { return world_.engine(); }

  const Workload model_;
  aio::StoreWorld world_{1};
  Buffer memory_ = Buffer::on_heap(4 * aio::kChunkBytes);
  uint32_t drives_ = 10;
};

TEST_P(Reshard, ThroughAnyWorldsGivesTheSamePlanesCountsAndTrainersState) {
  const Folders first = whole_store();
  std::vector<Folders> there = {first};
  uint32_t group = 1;
  for (const auto& [ranks, group_ranks] : {std::pair{4u, 4u}, {2u, 2u}, {3u, 1u}, {6u, 3u}, {3u, 3u}, {1u, 1u}}) {
    const Stores stores = open(there);
    const Folders drives = folders(text("ranks", ranks, "of", group_ranks), ranks % 3 + 1);
    const NewSet set = wanted(ranks, group_ranks, drives);
    const Result<DriveBytes> moved = reshard(engine(), {stores, group}, model_, set);
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    there = set.drives;
    group = group_ranks;
    std::set<std::string> ids;
    for (const auto& store : open(there)) {
      ids.insert(store->id());
      EXPECT_EQ(store->shape().ranks, ranks);
      EXPECT_EQ(store->payload().step, kStep);
      EXPECT_EQ(store->payload().trainer_state, "trainer's own");
      EXPECT_EQ(store->payload().config_hash, "after");
      EXPECT_EQ(store->payload().loss_scale, 64);
    }
    EXPECT_EQ(ids.size(), 1u);
    EXPECT_FALSE(ids.contains(stores.front()->id()));
  }
  const Stores before = open({first}), after = open(there);
  EXPECT_EQ(before[0]->shape().first_difference(after[0]->shape()), "");
  EXPECT_EQ(bytes_of(*before[0]), bytes_of(*after[0]));
  const Result<EngineState> counts = parse_engine_state(after[0]->payload(), model_);
  ASSERT_TRUE(counts.ok()) << counts.status().message();
  EXPECT_EQ(*counts, counts_of(model_));
}

TEST_P(Reshard, RefusesASetThatIsNotWholeOrNotOfOneRun) {
  const Folders first = whole_store(), other = whole_store();
  const Folders two = folders("two", 1), second = folders("second", 1), target = folders("target", 1);
  {
    const Stores one = open({first}), another = open({other});
    ASSERT_TRUE(reshard(engine(), {one, 1}, model_, wanted(2, 2, two)).ok());
    ASSERT_TRUE(reshard(engine(), {another, 1}, model_, wanted(2, 2, second)).ok());
  }
  Stores mixed = open({two, two});
  mixed[1] = std::move(open({second, second})[1]);
  const Status of_two_runs = reshard(engine(), {mixed, 2}, model_, wanted(3, 3, target)).status();
  EXPECT_NE(of_two_runs.message().find("store of rank 1: belongs to run "), std::string::npos) << of_two_runs.message();
  mixed.pop_back();
  EXPECT_EQ(reshard(engine(), {mixed, 2}, model_, wanted(3, 3, target)).status().message(),
            "store: 1 of 2 ranks' stores are here");
  Workload larger = model_;
  larger.units[0].elements += kBlockElements;
  const Stores whole = open({first});
  const Status another_model = reshard(engine(), {whole, 1}, larger, wanted(3, 3, target)).status();
  EXPECT_NE(another_model.message().find("holds another model: unit u0 has "), std::string::npos)
      << another_model.message();
  EXPECT_FALSE(target[0]->has_file(aio::store_file_name(0)));
}

TEST_P(Reshard, RemovesWhatItHasMadeWhenABlockOfTheSetIsDamaged) {
  const Folders first = whole_store();
  const Folders target = folders("target", 2);
  {
    const Stores stores = open({first});
    // The last thing that is read, when all but one of the new stores have been made.
    const Extent place = stores[0]->begin_read(0)->extents.front();
    for (const auto& folder : first) {
      auto& memory = static_cast<aio::MemoryFolder&>(*folder);
      if (place.file->path().starts_with(folder->path()))
        memory.bytes(aio::store_file_name(0))[place.offset_bytes + 5] ^= std::byte{1};
    }
  }
  const Stores stores = open({first});
  const Status damaged = reshard(engine(), {stores, 1}, model_, wanted(3, 3, target)).status();
  EXPECT_EQ(damaged.code(), Code::kCorrupt) << damaged.message();
  EXPECT_NE(damaged.message().find("u0.a[0.."), std::string::npos) << damaged.message();
  for (const auto& folder : target) {
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_FALSE(folder->has_file(aio::store_file_name(rank))) << rank;
  }
}

TEST_P(Reshard, RemovesWhatItHasMadeWhenOneOfTheNewStoresIsDamagedBeforeAllAreWhole) {
  const Folders first = whole_store(), target = folders("target", 1);
  const Stores stores = open({first});
  const auto damage_once_all_are_made = [&](double share) {
    auto& folder = static_cast<aio::MemoryFolder&>(*target[0]);
    if (share > 0.9 && folder.has_file(aio::store_file_name(1)))
      folder.bytes(aio::store_file_name(1))[StoreLayout::header_offset(0) + 5] = std::byte{99};
    return Status();
  };
  const Status damaged =
      reshard(engine(), {stores, 1}, model_, wanted(2, 2, target), damage_once_all_are_made).status();
  EXPECT_EQ(damaged.message().find("/target0/" + aio::store_file_name(1) + ": store header"), 0u) << damaged.message();
  for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_FALSE(target[0]->has_file(aio::store_file_name(rank))) << rank;
}

TEST_P(Reshard, LeavesWhatAnotherRunPutsInPlaceOfItsStores) {
  const Folders first = whole_store(), target = folders("target", 1), others = folders("others", 1);
  const Stores stores = open({first});
  ASSERT_TRUE(reshard(engine(), {stores, 1}, model_, wanted(2, 2, others)).ok());
  const std::string name = aio::store_file_name(1);
  auto& theirs = static_cast<aio::MemoryFolder&>(*others[0]);
  auto& folder = static_cast<aio::MemoryFolder&>(*target[0]);
  const auto replace_once_all_are_made = [&](double share) {
    if (share > 0.9 && folder.has_file(name)) folder.bytes(name) = theirs.bytes(name);
    return Status();
  };
  const Status replaced =
      reshard(engine(), {stores, 1}, model_, wanted(2, 2, target), replace_once_all_are_made).status();
  EXPECT_EQ(replaced.message(), "/target0/" + name + ": another run has made a store here meanwhile");
  EXPECT_FALSE(folder.has_file(aio::store_file_name(0)));
  EXPECT_TRUE(folder.has_file(name));
}

TEST_P(Reshard, LeavesStoresThatAreThereUnlessTheyAreToBeReplaced) {
  const Folders first = whole_store(), target = folders("target", 1);
  const Stores stores = open({first});
  ASSERT_TRUE(reshard(engine(), {stores, 1}, model_, wanted(4, 4, target)).ok());
  NewSet two = wanted(2, 2, target);
  EXPECT_EQ(reshard(engine(), {stores, 1}, model_, two).status().message(),
            "/target0: has a store already: " + aio::store_file_name(0));
  two.existing = aio::Existing::replace;
  ASSERT_TRUE(reshard(engine(), {stores, 1}, model_, two).ok());
  EXPECT_EQ(open(two.drives).size(), 2u);
  EXPECT_FALSE(target[0]->has_file(aio::store_file_name(2)));
}

TEST_P(Reshard, RefusesDrivesWithoutRoomForAllRanksTogether) {
  const Folders first = whole_store(), target = folders("target", 1);
  const Stores stores = open({first});
  auto& folder = static_cast<aio::MemoryFolder&>(*target[0]);
  folder.set_free_bytes(stores[0]->size_bytes() / 2);  // more than one of the four takes
  const Status full = reshard(engine(), {stores, 1}, model_, wanted(4, 4, target)).status();
  EXPECT_EQ(full.code(), Code::kDoesNotFit);
  EXPECT_EQ(full.message().find("/target0: the stores of 4 ranks need "), 0u) << full.message();
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_FALSE(folder.has_file(aio::store_file_name(rank)));
}

INSTANTIATE_TEST_SUITE_P(Moments, Reshard, testing::Values(MomentForm::fp32, MomentForm::int8),
                         [](const auto& which) { return which.param == MomentForm::fp32 ? "fp32" : "int8"; });

}  // namespace
}  // namespace penstock::engine
