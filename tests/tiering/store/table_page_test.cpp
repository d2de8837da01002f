#include "tiering/store/table_page.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/damage.h"
#include "tests/support/store_shapes.h"
#include "tiering/store/root_record.h"

namespace penstock {
namespace {

TEST(TableGeometry, CoversEveryTileWithPages) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    StoreShape shape = random_shape(random);
    TableGeometry geometry(shape);
    for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
      ASSERT_EQ(geometry.checksums(tile), checksum_count(shape, tile)) << "seed " << seed;
      ASSERT_LE(geometry.first_page(tile), geometry.last_page(tile));
      ASSERT_LT(geometry.last_page(tile), geometry.table_pages());
    }
    ASSERT_LE(geometry.table_pages() * geometry.words_per_page(), geometry.words() + geometry.words_per_page());
  }
}

// In tiles of 16 M elements: 256 blocks of 4 planes each.
StoreShape shape_of_tiles(uint64_t tiles) {
  StoreShape shape;
  shape.units = {{"all", {}}};
  shape.kinds = {{{{Role::weight, Dtype::bf16},
                   {Role::master_low, Dtype::uint16},
                   {Role::momentum, Dtype::fp32},
                   {Role::variance, Dtype::fp32}},
                  true}};
  const uint64_t elements = uint64_t{16} << 20;
  for (uint64_t tile = 0; tile < tiles; ++tile) shape.tiles.push_back({0, 0, tile * elements, elements});
  return shape;
}

TEST(TableGeometry, TakesLongerPagesForALargerModel) {
  const StoreShape shape = shape_of_tiles(12000);  // 200 G parameters
  const TableGeometry geometry(shape);
  EXPECT_LE(geometry.pages(), kPagesMax);
  EXPECT_GT(geometry.page_bytes(), kAlignmentBytes);
  double share = static_cast<double>(geometry.pages() * geometry.page_bytes()) /
                 static_cast<double>(shape.layout(0).size_bytes * shape.tiles.size());
  EXPECT_LT(share, 1e-4);
}

TEST(TableGeometry, TakesLongerPagesWhereTheTableAloneWouldFillTheRootRecord) {
  const TableGeometry geometry(shape_of_tiles(3015));
  const uint64_t shortest_words = (kAlignmentBytes - 64) / sizeof(uint64_t) - 1;
  ASSERT_EQ(ceil_div(geometry.words(), shortest_words), kPagesMax);
  EXPECT_EQ(geometry.page_bytes(), 2 * kAlignmentBytes);
  EXPECT_LE(geometry.pages(), kPagesMax);
}

TEST(TileTable, KeepsEveryTilesWordsThroughItsPages) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    StoreShape shape = random_shape(random);
    auto geometry = std::make_shared<TableGeometry>(shape);
    TileTable table(geometry), copy(geometry);
    std::vector<std::vector<uint64_t>> checksums;
    for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
      checksums.emplace_back(checksum_count(shape, tile));
      for (uint64_t& value : checksums.back()) value = random();
      table.set(tile, tile % 3, checksums.back());
    }
    for (uint32_t number = 0; number < geometry->pages(); ++number) {
      std::span<const uint64_t> words = table.page_words(number);
      TablePage page{{1, 2}, number, 5, 4, {words.begin(), words.end()}};
      Result<TablePage> back = TablePage::decode(page.encode(geometry->page_bytes()), "page");
      ASSERT_TRUE(back.ok()) << back.status().message();
      ASSERT_EQ(back->number, number);
      ASSERT_TRUE(copy.set_page_words(number, back->words).ok());
    }
    for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
      ASSERT_EQ(copy.slot(tile), tile % 3);
      ASSERT_TRUE(std::equal(checksums[tile].begin(), checksums[tile].end(), copy.checksums(tile).begin()));
    }
  }
}

TEST(TablePage, RefusesDamage) {
  TablePage page{{1, 2}, 3, 4, 4, {5, 6, 7}};
  std::vector<std::byte> good = page.encode(4096);
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes = damaged(good, random);
    bytes.resize(4096);
    Result<TablePage> read = TablePage::decode(bytes, "page");
    ASSERT_TRUE(!read.ok() || bytes == good) << "seed " << seed;
  }
}

// No table has one, and a sanitizer minds what is copied from it.
TEST(TablePage, MayBeWithoutWords) {
  const Result<TablePage> page = TablePage::decode(TablePage{{1, 2}, 3, 4, 4, {}}.encode(4096), "page");
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_TRUE(page->words.empty());
}

TEST(TablePage, IsNotReadFromFewerBytesThanAPageHas) {
  for (size_t bytes : {size_t{0}, size_t{7}, size_t{64}, size_t{4000}}) {
    EXPECT_EQ(TablePage::decode(std::vector<std::byte>(bytes), "page").status().code(), Code::kCorrupt) << bytes;
  }
}

TEST(PagesDigest, DependsOnEveryPageAndTheirOrder) {
  std::vector<uint64_t> pages = {1, 2, 3};
  uint64_t digest = pages_digest(pages);
  std::swap(pages[0], pages[2]);
  EXPECT_NE(pages_digest(pages), digest);
  pages = {1, 2, 4};
  EXPECT_NE(pages_digest(pages), digest);
}

}  // namespace
}  // namespace penstock
