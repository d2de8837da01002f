#include "runtime/engine/initial_tiles.h"

#include <algorithm>

#include "cpu_optim/block_codes.h"
#include "tiering/arithmetic/convert.h"
#include "tiering/check.h"

namespace penstock::engine {
namespace {

// What each plane holds of a master before the first step; moments are zeros.
void fill_plane(const Plane& plane, std::span<const float> masters, std::span<std::byte> out) {
  auto each = [&]<typename T>(auto value_of) {
    T* place = reinterpret_cast<T*>(out.data());
    for (size_t i = 0; i < masters.size(); ++i) place[i] = value_of(masters[i]);
  };
  switch (plane.dtype) {
    case Dtype::fp32:
      return each.operator()<float>([](float master) { return master; });
    case Dtype::fp16:
      return each.operator()<uint16_t>([](float master) { return arithmetic::fp16_of_float(master); });
    case Dtype::uint16:
      return each.operator()<uint16_t>([](float master) { return arithmetic::split_of(master).low; });
    case Dtype::bf16:
      return each.operator()<uint16_t>([](float master) { return arithmetic::bf16_of_float(master); });
    default:
      CHECK(false, "no plane of ", name_of(plane.dtype), " holds a master");
  }
}

bool holds_master(Role role) { return role == Role::weight || role == Role::master || role == Role::master_low; }

}  // namespace

Result<std::span<const float>> InitialTiles::Masters::of(TileId id, uint64_t first, uint64_t count) {
  const StoreShape::Tile& tile = shape_.tiles[id];
  count = first < tile.elements ? std::min(count, tile.elements - first) : 0;
  if (id != id_ || first != first_ || count != values_.size()) {
    values_.resize(count);
    if (count > 0) PENSTOCK_TRY(initial_(tile.unit, tile.first_element + first, values_));
    id_ = id;
    first_ = first;
  }
  return std::span<const float>(values_);
}

Status InitialTiles::Coding::fill(BlockCode code, const Plane& plane, TileId tile, uint64_t first_byte,
                                  std::span<std::byte> bytes) {
  if (plane.role == Role::weight) return fill_codes(code, plane, tile, first_byte, bytes);
  const std::span<const std::byte> made = std::as_bytes(std::span(scales_));
  CHECK(tile == tile_ && first_byte + bytes.size() <= made.size(), "scales of tile ", tile, " before its codes");
  std::ranges::copy(made.subspan(first_byte, bytes.size()), bytes.begin());
  return Status();
}

Status InitialTiles::Coding::fill_codes(BlockCode code, const Plane& plane, TileId tile, uint64_t first_byte,
                                        std::span<std::byte> bytes) {
  if (first_byte == 0) {
    tile_ = tile;
    scales_.assign(coded_planes(code)[1].bytes(shape_.tiles[tile].elements) / sizeof(float), 0);
  }
  const uint64_t piece_bytes = plane.bytes(kBlockElements);
  for (uint64_t at = 0; at < bytes.size(); at += piece_bytes) {
    const std::span<std::byte> piece = bytes.subspan(at, std::min(piece_bytes, bytes.size() - at));
    const uint64_t first = (first_byte + at) / piece_bytes * kBlockElements;
    PENSTOCK_TRY_ASSIGN(values, masters_.of(tile, first, kBlockElements));
    cpu_optim::quantise(code, values, piece.data(), scales_.data() + first / kCodeBlockElements);
  }
  return Status();
}

Status InitialTiles::fill(TileId id, uint32_t number, uint64_t first_byte, std::span<std::byte> bytes) {
  const Plane& plane = shape_.kind(id).planes[number];
  size_t filled_bytes = 0;
  if (const std::optional<BlockCode> coded = workload_.units[shape_.tiles[id].unit].code) {
    return coding_.fill(*coded, plane, id, first_byte, bytes);
  }
  if (holds_master(plane.role)) {
    const uint64_t element_bytes = bytes_of(plane.dtype);
    PENSTOCK_TRY_ASSIGN(values, masters_.of(id, first_byte / element_bytes, bytes.size() / element_bytes));
    filled_bytes = values.size() * element_bytes;
    if (plane.role == Role::weight && workload_.form.master == MasterForm::split) {
      auto* high = reinterpret_cast<uint16_t*>(bytes.data());
      for (size_t i = 0; i < values.size(); ++i) high[i] = arithmetic::split_of(values[i]).high;
    } else {
      fill_plane(plane, values, bytes);
    }
  }
  std::fill(bytes.begin() + static_cast<ptrdiff_t>(filled_bytes), bytes.end(), std::byte{0});
  return Status();
}

}  // namespace penstock::engine
