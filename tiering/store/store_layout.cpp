#include "tiering/store/store_layout.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tiering/check.h"
#include "tiering/store/slot_table.h"

namespace penstock {
namespace {

// Ranges of a spread part are whole multiples of this, so that no drive gets tiny ones.
constexpr uint64_t kGrainBytes = 128 * kKiB;

struct Part {
  uint64_t offset_bytes;
  uint64_t length_bytes;
};

std::vector<Part> parts_of(const TileLayout& layout) {
  std::vector<Part> parts;
  const auto is_weight = [](const TileLayout::Place& place) {
    return place.plane.role == Role::weight || place.plane.role == Role::weight_scale;
  };
  const auto state = std::find_if_not(layout.places.begin(), layout.places.end(), is_weight);
  uint64_t from = 0;
  if (state != layout.places.begin() && state != layout.places.end()) {
    from = state->offset_bytes;
    parts.push_back({0, from});
  }
  parts.push_back({from, layout.size_bytes - from});
  return parts;
}

bool continues(const StoreLayout::FileRange& before, const StoreLayout::FileRange& range) {
  return before.drive == range.drive && before.file_offset_bytes + before.length_bytes == range.file_offset_bytes;
}

}  // namespace

std::vector<uint32_t> shares_of(const std::vector<double>& rates, uint32_t drives) {
  CHECK(rates.empty() || rates.size() == drives, rates.size(), " rates for ", drives, " drives");
  std::vector<double> given = rates.empty() ? std::vector<double>(drives, 1.0) : rates;
  double sum = std::accumulate(given.begin(), given.end(), 0.0);
  std::vector<uint32_t> shares;
  for (double rate : given) shares.push_back(std::max(1u, static_cast<uint32_t>(rate / sum * kShareWhole)));
  return shares;
}

uint32_t furthest_below_share(std::span<const uint64_t> given_bytes, std::span<const uint32_t> shares) {
  uint32_t best = 0;
  for (uint32_t drive = 1; drive < shares.size(); ++drive) {
    if (given_bytes[drive] / kAlignmentBytes * shares[best] < given_bytes[best] / kAlignmentBytes * shares[drive]) {
      best = drive;
    }
  }
  return best;
}

uint64_t slot_bytes_of(const StoreShape& shape, uint32_t slots) {
  uint64_t sum = 0;
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    sum += shape.layout(tile).size_bytes * (shape.kind(tile).updated ? slots : 1);
  }
  return sum;
}

// Places parts on the drives so that the totals follow the shares, separately for weights and for states.
class StoreLayout::Spreader {
 public:
  explicit Spreader(const std::vector<uint32_t>& shares) : shares_(shares) {}

  void place(const Part& part, size_t family, std::vector<uint64_t>& region_bytes, std::vector<RegionRange>& ranges) {
    std::vector<uint64_t>& given = given_[family];
    given.resize(shares_.size(), 0);
    uint64_t offset_bytes = part.offset_bytes, left_bytes = part.length_bytes;
    std::vector<uint64_t> lengths(shares_.size(), 0);
    const uint64_t grain = part.length_bytes < kSpreadBytes ? part.length_bytes : kGrainBytes;
    while (left_bytes > 0) {
      uint64_t take = std::min(grain, left_bytes);
      uint32_t drive = furthest_below_share(given, shares_);
      given[drive] += take;
      lengths[drive] += take;
      left_bytes -= take;
    }
    for (uint32_t drive = 0; drive < shares_.size(); ++drive) {
      if (lengths[drive] == 0) continue;
      ranges.push_back({drive, region_bytes[drive], offset_bytes, lengths[drive]});
      region_bytes[drive] += lengths[drive];
      offset_bytes += lengths[drive];
    }
  }

 private:
  const std::vector<uint32_t>& shares_;
  std::map<size_t, std::vector<uint64_t>> given_;
};

StoreLayout::StoreLayout(const StoreShape& shape, uint32_t slots, std::vector<uint32_t> shares, StateCapacity state,
                         WeightPlacement weights)
    : slots_(slots), shares_(std::move(shares)), table_(std::make_shared<TableGeometry>(shape, state)) {
  CHECK(slots >= 1 && slots <= kSlotsMax, slots, " slots");
  const uint64_t shape_bytes = shape.encode().size();
  pages_offset_ = shape_offset(1, shape_bytes) + round_up(shape_bytes, kAlignmentBytes);
  tiles_offset_ = round_up(pages_offset_ + table_->pages() * table_->page_bytes() * page_slots(), kMiB);

  Spreader spreader(shares_);
  region_bytes_.assign(drives(), 0);
  std::vector<uint64_t> frozen_bytes(drives(), 0);
  const auto tiles = static_cast<TileId>(shape.tiles.size());
  // Parts [from, to) of one tile after another.
  const auto place = [&](TileId first, TileId end, size_t from, size_t to) {
    for (TileId tile = first; tile < end; ++tile) {
      const std::vector<Part> parts = parts_of(shape.layout(tile));
      TilePlace& placed = tiles_[tile];
      for (size_t family = from; family < std::min(to, parts.size()); ++family) {
        std::vector<RegionRange>& ranges = ranges_[family];
        placed.first_range[family] = static_cast<uint32_t>(ranges.size());
        spreader.place(parts[family], family, placed.updated ? region_bytes_ : frozen_bytes, ranges);
        placed.range_count[family] = static_cast<uint32_t>(ranges.size()) - placed.first_range[family];
      }
    }
  };
  for (TileId tile = 0; tile < tiles; ++tile) {
    tiles_.push_back({shape.layout(tile).size_bytes, shape.kind(tile).updated, {}, {}});
  }
  for (TileId first = 0, end = 0; first < tiles; first = end) {
    for (end = first + 1; end < tiles && shape.tiles[end].unit == shape.tiles[first].unit;) ++end;
    if (weights == WeightPlacement::by_unit) {
      place(first, end, 0, 1);
      place(first, end, 1, kPartsMax);
    } else {
      place(first, end, 0, kPartsMax);
    }
  }
  for (uint32_t drive = 0; drive < drives(); ++drive) {
    file_bytes_.push_back(tiles_offset_ + slots * region_bytes_[drive] + frozen_bytes[drive]);
  }
}

std::vector<StoreLayout::FileRange> StoreLayout::file_ranges(TileId tile, uint32_t slot, uint64_t offset_bytes,
                                                             uint64_t length_bytes) const {
  const TilePlace& place = tiles_[tile];
  CHECK(slot < slots_of(tile), "tile ", tile, " has ", slots_of(tile), " slots, not slot ", slot);
  CHECK(offset_bytes + length_bytes <= place.size_bytes, length_bytes, " B at ", offset_bytes, " of tile ", tile);
  const uint64_t region = place.updated ? slot : slots_;
  std::vector<FileRange> found;
  const auto add = [&](const RegionRange& range) {
    const uint64_t from = std::max(offset_bytes, range.tile_offset_bytes);
    const uint64_t to = std::min(offset_bytes + length_bytes, range.tile_offset_bytes + range.length_bytes);
    if (from >= to) return;
    const uint64_t file_offset_bytes = tiles_offset_ + region * region_bytes_[range.drive] + range.region_offset_bytes;
    const FileRange next{range.drive, file_offset_bytes + (from - range.tile_offset_bytes), from, to - from};
    if (!found.empty() && continues(found.back(), next)) {
      found.back().length_bytes += next.length_bytes;
    } else {
      found.push_back(next);
    }
  };
  for (size_t family = 0; family < kPartsMax; ++family) {
    const std::span<const RegionRange> all = ranges_[family];
    for (const RegionRange& range : all.subspan(place.first_range[family], place.range_count[family])) add(range);
  }
  return found;
}

uint64_t StoreLayout::page_offset(uint32_t page, uint32_t slot) const {
  CHECK(page < table_->pages() && slot < page_slots());
  return pages_offset_ + (uint64_t{slot} * table_->pages() + page) * table_->page_bytes();
}

}  // namespace penstock
