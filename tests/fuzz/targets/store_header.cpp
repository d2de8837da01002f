#include "tiering/store/store_header.h"

#include <algorithm>

#include "tests/fuzz/target.h"
#include "tests/support/store_records.h"
#include "tests/support/store_shapes.h"
#include "tiering/store/store_layout.h"

namespace penstock::fuzz {
namespace {

StoreHeader header_of(std::vector<uint32_t> shares, uint32_t slots) {
  return {.store = {1, 2},
          .state = StoreHeader::State::complete,
          .drive = static_cast<uint32_t>(shares.size()) - 1,
          .slots = slots,
          .shares = std::move(shares),
          .shape_bytes = 700,
          .shape_digest = 3,
          .file_bytes = 4 * kMiB};
}

std::vector<Bytes> seeds() {
  return {fields_of(header_of({10000}, 1).encode()), fields_of(header_of({2000, 5000, 3000}, 2).encode()),
          fields_of(header_of(std::vector<uint32_t>(kDrivesMax, 156), 4).encode())};
}

// What the layout makes of the shares and slots of a header: every byte of every tile lies on some drive, in its file.
std::string lay_out(const StoreHeader& header) {
  static const StoreShape shape = small_shape(2, 5 * kBlockElements, 16 * kBlockElements);
  const StoreLayout layout(shape, header.slots, header.shares, header.state_capacity, header.weights);
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    uint64_t bytes = 0;
    for (const auto& piece : layout.file_ranges(tile, layout.slots_of(tile) - 1, 0, layout.tile_bytes(tile))) {
      bytes += piece.length_bytes;
      if (piece.file_offset_bytes + piece.length_bytes > layout.file_bytes(piece.drive)) return "a tile past its file";
    }
    if (bytes != layout.tile_bytes(tile)) return "a tile without all of its bytes";
  }
  return "";
}

std::string run(std::span<const std::byte> input) {
  Bytes record(input.begin(), input.end());
  record.resize(kRecordBytes);
  seal(record);
  const Result<StoreHeader> header = StoreHeader::decode(record, "header");
  if (!header.ok()) return "";
  if (header->drive >= header->drives() || header->drives() > kDrivesMax) return "drives that there are not";
  const bool shares_make_sense = std::all_of(header->shares.begin(), header->shares.end(),
                                             [](uint32_t share) { return share >= 1 && share <= kShareWhole; });
  if (!shares_make_sense) return "a share of nothing, or of more than all";
  const uint64_t shape_end = StoreLayout::shape_offset(1, header->shape_bytes) + header->shape_bytes;
  if (header->shape_bytes == 0 || shape_end > header->file_bytes) return "a shape that the file has no place for";
  if (!header->state_capacity.validate().ok()) return "room for more state than any store has";
  if (std::string wrong = lay_out(*header); !wrong.empty()) return wrong;
  const Result<StoreHeader> again = StoreHeader::decode(header->encode(), "header");
  return again.ok() && *again == *header ? "" : "written again it is another";
}

}  // namespace

const Target store_header{.name = "store_header", .seeds = seeds, .run = run, .rounds = 20000};

}  // namespace penstock::fuzz
