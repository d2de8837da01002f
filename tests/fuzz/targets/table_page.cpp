#include "tiering/store/table_page.h"

#include <algorithm>

#include "tests/fuzz/target.h"
#include "tests/support/store_records.h"
#include "tests/support/store_shapes.h"

namespace penstock::fuzz {
namespace {

constexpr size_t kBytesMost = 4 * kAlignmentBytes;

const std::shared_ptr<const TableGeometry>& geometry() {
  static const auto of_two_pages =
      std::make_shared<const TableGeometry>(small_shape(1, 140 * kBlockElements, 2 * kBlockElements));
  return of_two_pages;
}

std::vector<Bytes> seeds() {
  TileTable table(geometry());
  std::vector<Bytes> all{TablePage{{1, 2}, 3, 4, 4, {}}.encode(kAlignmentBytes),
                         TablePage{{1, 2}, 0, 9, 8, std::vector<uint64_t>(700, 5)}.encode(2 * kAlignmentBytes)};
  for (uint32_t number = 0; number < geometry()->pages(); ++number) {
    const std::span<const uint64_t> words = table.page_words(number);
    all.push_back(TablePage{{1, 2}, number, 1, 0, {words.begin(), words.end()}}.encode(geometry()->page_bytes()));
  }
  return all;
}

std::string run(std::span<const std::byte> input) {
  Bytes bytes(input.begin(), input.end());
  bytes.resize(std::min(bytes.size(), kBytesMost));
  if (bytes.size() >= sizeof(uint64_t)) seal(bytes);
  const Result<TablePage> page = TablePage::decode(bytes, "page");
  if (!page.ok()) return "";
  TileTable table(geometry());
  const uint32_t number = page->number % geometry()->pages();
  if (table.set_page_words(number, page->words).ok()) {
    const std::span<const uint64_t> words = table.page_words(number);
    if (!std::equal(words.begin(), words.end(), page->words.begin(), page->words.end())) return "words were lost";
  }
  const Result<TablePage> again = TablePage::decode(page->encode(bytes.size()), "page");
  const bool same = again.ok() && again->number == page->number && again->store == page->store &&
                    again->sequence == page->sequence && again->step == page->step && again->words == page->words;
  return same ? "" : "written again it is another";
}

}  // namespace

const Target table_page{.name = "table_page", .seeds = seeds, .run = run, .rounds = 20000};

}  // namespace penstock::fuzz
