#include "tiering/store/store_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/damage.h"
#include "tests/support/store_shapes.h"

namespace penstock {
namespace {

struct Taken {
  uint64_t from, to;
  bool operator<(const Taken& other) const { return from < other.from; }
};

std::vector<std::vector<Taken>> all_runs(const StoreShape& shape, const StoreLayout& layout) {
  std::vector<std::vector<Taken>> runs(layout.drives());
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    for (uint32_t slot = 0; slot < layout.slots_of(tile); ++slot) {
      for (const StoreLayout::FileRange& piece : layout.file_ranges(tile, slot, 0, layout.tile_bytes(tile))) {
        runs[piece.drive].push_back({piece.file_offset_bytes, piece.file_offset_bytes + piece.length_bytes});
      }
    }
  }
  for (uint32_t drive = 0; drive < layout.drives(); ++drive) {
    for (uint32_t page = 0; page < layout.table().pages(); ++page) {
      for (uint32_t slot = 0; slot < layout.page_slots(); ++slot) {
        uint64_t at = layout.page_offset(page, slot);
        runs[drive].push_back({at, at + layout.table().page_bytes()});
      }
    }
    for (uint32_t copy = 0; copy < 2; ++copy) {
      runs[drive].push_back({StoreLayout::header_offset(copy), StoreLayout::header_offset(copy) + kRecordBytes});
      runs[drive].push_back({StoreLayout::root_offset(copy), StoreLayout::root_offset(copy) + kRecordBytes});
    }
    const uint64_t shape_bytes = shape.encode().size();
    for (uint32_t copy = 0; copy < 2; ++copy) {
      const uint64_t at = StoreLayout::shape_offset(copy, shape_bytes);
      runs[drive].push_back({at, at + shape_bytes});
    }
  }
  return runs;
}

// Stores that were made before have their tiles where this says.
TEST(FurthestBelowShare, IsTheFirstOfEquals) {
  using Bytes = std::vector<uint64_t>;
  using Shares = std::vector<uint32_t>;
  EXPECT_EQ(furthest_below_share(Bytes{0, 0, 0}, Shares{3000, 3000, 3000}), 0u);
  EXPECT_EQ(furthest_below_share(Bytes{8192, 4096, 4096}, Shares{3000, 3000, 3000}), 1u);
  EXPECT_EQ(furthest_below_share(Bytes{8192, 4096}, Shares{6000, 3000}), 0u);
  EXPECT_EQ(furthest_below_share(Bytes{8192, 4096}, Shares{5999, 3000}), 1u);
}

TEST(StoreLayout, GivesEveryByteAPlaceOfItsOwn) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    StoreShape shape = random_shape(random);
    std::vector<uint32_t> shares(1 + random() % 4);
    for (uint32_t& share : shares) share = 1 + static_cast<uint32_t>(random() % kShareWhole);
    const auto weights = random() % 2 ? WeightPlacement::by_unit : WeightPlacement::beside_state;
    // Of some, the pages take more than the MiB that tiles begin at anyway.
    const uint64_t most = random() % 8 == 0 ? kEngineStateBytesMax : 20000;
    const StateCapacity state{random() % most, random() % 20000};
    StoreLayout layout(shape, 1 + static_cast<uint32_t>(random() % 3), shares, state, weights);
    std::vector<std::vector<Taken>> runs = all_runs(shape, layout);
    for (uint32_t drive = 0; drive < layout.drives(); ++drive) {
      std::sort(runs[drive].begin(), runs[drive].end());
      for (size_t i = 0; i < runs[drive].size(); ++i) {
        ASSERT_LE(runs[drive][i].to, layout.file_bytes(drive));
        if (i > 0) {
          ASSERT_LE(runs[drive][i - 1].to, runs[drive][i].from);
        }
      }
    }
  }
}

TEST(StoreLayout, CutsAnyRangeOfATileInOrderAndWithoutGaps) {
  std::mt19937_64 random(3);
  StoreShape shape = small_shape(3, 40 * kBlockElements, 16 * kBlockElements);
  StoreLayout layout(shape, 2, {3000, 6000, 1000});
  for (int i = 0; i < 2000; ++i) {
    TileId tile = static_cast<TileId>(random() % shape.tiles.size());
    uint64_t sectors = layout.tile_bytes(tile) / 4096;
    uint64_t from = random() % sectors * 4096, length = (1 + random() % (sectors - from / 4096)) * 4096;
    std::vector<StoreLayout::FileRange> whole = layout.file_ranges(tile, 0, 0, layout.tile_bytes(tile));
    uint64_t at = from;
    for (const StoreLayout::FileRange& piece : layout.file_ranges(tile, 0, from, length)) {
      ASSERT_EQ(piece.tile_offset_bytes, at);
      ASSERT_EQ(piece.file_offset_bytes % 4096, 0u);
      at += piece.length_bytes;
    }
    ASSERT_EQ(at, from + length);
  }
}

// What forward reads of a unit is one run of each drive's file, and so is what the updates read and write of states.
TEST(StoreLayout, PutsAUnitsWeightsTogetherWhereAskedTo) {
  const StoreShape shape = small_shape(3, 40 * kBlockElements + 5, 2 * kBlockElements);
  for (const std::vector<uint32_t>& shares : {std::vector<uint32_t>{kShareWhole}, {3000, 7000}}) {
    const StoreLayout layout(shape, 2, shares, {}, WeightPlacement::by_unit);
    for (uint32_t unit = 0; unit < 3; ++unit) {
      for (uint32_t slot = 0; slot < 2; ++slot) {
        for (bool weight : {true, false}) {
          std::vector<uint64_t> ends(shares.size(), 0);
          for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
            if (shape.tiles[tile].unit != unit) continue;
            const TileLayout planes = shape.layout(tile);
            const uint64_t split = planes.places[1].offset_bytes;
            const uint64_t from = weight ? 0 : split, length = weight ? split : planes.size_bytes - split;
            for (const StoreLayout::FileRange& range : layout.file_ranges(tile, slot, from, length)) {
              uint64_t& end = ends[range.drive];
              ASSERT_TRUE(end == 0 || end == range.file_offset_bytes) << "tile " << tile << " slot " << slot;
              end = range.file_offset_bytes + range.length_bytes;
            }
          }
        }
      }
    }
  }
}

TEST(StoreLayout, WritesATileAtOnceWhereItsWeightLiesBesideItsState) {
  const StoreShape shape = small_shape(3, 40 * kBlockElements + 5, 2 * kBlockElements);
  const StoreLayout layout(shape, 2, {kShareWhole}, {}, WeightPlacement::beside_state);
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    EXPECT_EQ(layout.file_ranges(tile, 0, 0, layout.tile_bytes(tile)).size(), 1u);
  }
}

TEST(StoreLayout, FollowsTheSharesForWeightsAndForStatesAlike) {
  StoreShape shape = small_shape(40, 16 * kBlockElements, 16 * kBlockElements);
  const std::vector<uint32_t> shares = {7500, 2000, 500};
  StoreLayout layout(shape, 2, shares);
  for (bool weight : {true, false}) {
    std::vector<double> bytes(3, 0);
    double sum = 0;
    for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
      if (!shape.kind(tile).updated) continue;
      TileLayout planes = shape.layout(tile);
      uint64_t split = planes.places[1].offset_bytes;
      uint64_t from = weight ? 0 : split, length = weight ? split : planes.size_bytes - split;
      for (const StoreLayout::FileRange& piece : layout.file_ranges(tile, 0, from, length)) {
        bytes[piece.drive] += static_cast<double>(piece.length_bytes);
        sum += static_cast<double>(piece.length_bytes);
      }
    }
    for (size_t drive = 0; drive < 3; ++drive) EXPECT_NEAR(bytes[drive] / sum, shares[drive] / 10000.0, 0.03);
  }
}

TEST(StoreLayout, KeepsAllDrivesBusyWithOneLargeTile) {
  StoreShape shape = small_shape(1, 16 * kBlockElements, 16 * kBlockElements);
  StoreLayout layout(shape, 2, {1, 1, 1});
  TileLayout planes = shape.layout(0);
  uint64_t split = planes.places[1].offset_bytes;
  EXPECT_EQ(layout.file_ranges(0, 0, split, planes.size_bytes - split).size(), 3u) << "10 MiB of states";
}

TEST(StoreLayout, GivesFrozenTilesOneSlot) {
  StoreShape shape = small_shape(1, kBlockElements, kBlockElements);
  StoreLayout one(shape, 1, {1}), two(shape, 2, {1}), three(shape, 3, {1});
  EXPECT_EQ(two.slots_of(0), 2u);
  EXPECT_EQ(two.slots_of(1), 1u);
  EXPECT_EQ(three.file_bytes(0) - two.file_bytes(0), shape.layout(0).size_bytes);
}

TEST(StoreShape, ComesBackAsItWas) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    StoreShape shape = random_shape(random);
    Result<StoreShape> back = StoreShape::decode(shape.encode());
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->encode(), shape.encode());
    EXPECT_EQ(back->digest(), shape.digest());
  }
}

TEST(StoreShape, NeitherCrashesNorAcceptsNonsenseFromDamagedBytes) {
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= 30000; ++seed) {
    std::mt19937_64 random(seed);
    StoreShape shape = small_shape(1 + seed % 3, 3 * kBlockElements + seed % 100, kBlockElements);
    Result<StoreShape> back = StoreShape::decode(damaged(shape.encode(), random));
    if (!back.ok()) continue;
    ++accepted;
    ASSERT_TRUE(back->validate().ok()) << "seed " << seed;
  }
  EXPECT_LT(accepted, 30000u);
}

// Each field that says how many would wrap around, or ask for more memory than there is, where it is believed.
TEST(StoreShape, RefusesMoreThanCanBeCounted) {
  const StoreShape good = small_shape(2, 1000, kBlockElements);
  std::vector<StoreShape> bad(6, good);
  bad[5].tiles[0].first_element = bad[5].tiles[1].first_element = uint64_t{1} << 47;  // of two units
  bad[0].tiles[0].elements = ~uint64_t{0};
  bad[1].tiles[0].first_element = ~uint64_t{0};
  for (StoreShape::Tile& tile : bad[2].tiles) tile.elements = uint64_t{1} << 47;  // too many together
  bad[3].units[0].parameters[1].elements = ~uint64_t{0} - 400;
  bad[4].units[0].parameters[1].first_element = ~uint64_t{0};
  for (const StoreShape& shape : bad) {
    EXPECT_EQ(shape.validate().code(), Code::kCorrupt);
    EXPECT_EQ(StoreShape::decode(shape.encode()).status().code(), Code::kCorrupt);
  }
}

TEST(StoreShape, RefusesWhatItWouldHaveWrittenOtherwise) {
  StoreShape shape = small_shape(1, 1000, kBlockElements);
  std::vector<std::byte> bytes = shape.encode();
  shape.kinds[0].updated = false;
  const std::vector<std::byte> frozen = shape.encode();
  const auto at = std::mismatch(bytes.begin(), bytes.end(), frozen.begin()).first;  // where it says whether steps write
  ASSERT_EQ(*at, std::byte{1});
  *at = std::byte{2};
  EXPECT_EQ(StoreShape::decode(bytes).status().code(), Code::kCorrupt);
}

TEST(StoreShape, SaysWhatDiffersFirst) {
  StoreShape here = small_shape(3, 1000, kBlockElements), there = small_shape(3, 1200, kBlockElements);
  EXPECT_EQ(here.first_difference(there), "unit h.0 has 1000 elements in the model, 1200 in the store");
  const StoreShape smaller = small_shape(2, 1000, kBlockElements);
  EXPECT_EQ(here.first_difference(smaller), "the model has 4 units, the store 3");
  EXPECT_EQ(here.first_difference(smaller, {.ours = "the run", .theirs = "the plan"}),
            "the run has 4 units, the plan 3");
  EXPECT_EQ(here.first_difference(here), "");
  StoreShape named = here, renamed = here;
  named.units[1].parameters = {{"weight [48, 16]", 0, 768}};
  renamed.units[1].parameters = {{"weight [16, 48]", 0, 768}};
  EXPECT_EQ(named.first_difference(renamed),
            "parameter 0 of unit h.1 is weight [48, 16] in the model, weight [16, 48] in the store");
  StateForm lion;
  lion.optimizer = OptimizerKind::lion;
  EXPECT_EQ(here.first_difference(small_shape(3, 1000, kBlockElements, lion)),
            "the optimizer states in the tiles differ");
}

Workload frozen_workload(std::optional<BlockCode> code) {
  Workload workload;
  workload.units.push_back({.name = "adapter", .elements = 1000, .parameters = {}});
  workload.units.push_back(
      {.name = "base", .elements = 3 * kBlockElements + 1, .trainable = false, .code = code, .parameters = {}});
  return workload;
}

TEST(StoreShape, KnowsWhatRestsInCodes) {
  auto shape_of = [](std::optional<BlockCode> code) {
    const Workload workload = frozen_workload(code);
    return StoreShape::of(workload, TileMap(workload, 2 * kBlockElements));
  };
  const StoreShape plain = shape_of(std::nullopt), nf4 = shape_of(BlockCode::nf4), int8 = shape_of(BlockCode::int8);
  EXPECT_FALSE(plain.has_codes());
  EXPECT_TRUE(nf4.has_codes() && int8.has_codes());
  EXPECT_EQ(nf4.first_difference(plain), "the weights of unit base are nf4_pair in the model, bf16 in the store");
  EXPECT_EQ(int8.first_difference(nf4), "the weights of unit base are int8 in the model, nf4_pair in the store");
  const Result<StoreShape> back = StoreShape::decode(nf4.encode());
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->first_difference(nf4), "");
  // Codes of a whole tile, their scales; a tile of 64 Ki + 1 elements, padded.
  EXPECT_EQ(nf4.layout(1).size_bytes, 2 * (kBlockElements / 2 + kBlockElements / 16));
  EXPECT_EQ(nf4.layout(2).size_bytes, kBlockElements / 2 + 4096 + kBlockElements / 16 + 4096);
  EXPECT_EQ(int8.layout(1).size_bytes, 2 * (kBlockElements + kBlockElements / 16));
  // Read together, so they lie together.
  EXPECT_EQ(StoreLayout(nf4, 2, {1}).file_ranges(1, 0, 0, nf4.layout(1).size_bytes).size(), 1u);
}

TEST(StoreShape, NamesTheTensorsOfABlock) {
  StoreShape shape = small_shape(1, 2 * kBlockElements, 2 * kBlockElements);
  TileLayout layout = shape.layout(0);
  EXPECT_EQ(describe_block(shape, 0, block_of(layout, 2 * kBlockElements, 0)), "h.0.attention[0..65536) weight");
  EXPECT_EQ(describe_block(shape, 0, block_of(layout, 2 * kBlockElements, 4 + 2)), "h.0.mlp[0..65536) momentum");
}

}  // namespace
}  // namespace penstock
