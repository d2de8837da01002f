#include "tiering/plan/area_cutter.h"

#include <algorithm>
#include <optional>

namespace penstock {

AreaCutter::AreaCutter(Area area, uint64_t first_byte, uint64_t capacity_bytes)
    : area_(area), first_byte_(first_byte), capacity_bytes_(capacity_bytes) {
  if (capacity_bytes > 0) stretches_.push_back({0, capacity_bytes});
}

void AreaCutter::split(uint64_t at) {
  for (size_t i = 0; i < stretches_.size(); ++i) {
    Stretch& stretch = stretches_[i];
    if (at <= stretch.begin || at >= stretch.end) continue;
    Stretch rest = stretch;
    stretch.end = rest.begin = at;
    stretches_.insert(stretches_.begin() + static_cast<ptrdiff_t>(i) + 1, rest);
    return;
  }
}

uint64_t AreaCutter::place_for(uint64_t bytes) const {
  // From each stretch on: when the last of what lies there ends. Never used is earliest.
  struct Candidate {
    uint64_t offset = 0;
    int64_t free_after = 0;
  };
  std::optional<Candidate> best;
  for (size_t first = 0; first < stretches_.size(); ++first) {
    const uint64_t offset = stretches_[first].begin;
    if (offset + bytes > capacity_bytes_) break;
    int64_t free_after = -1;
    bool held = false;
    for (size_t i = first; i < stretches_.size() && stretches_[i].begin < offset + bytes; ++i) {
      held |= is_held(stretches_[i]);
      if (stretches_[i].release != kNoMove) free_after = std::max<int64_t>(free_after, stretches_[i].release);
    }
    if (!held && (!best || free_after < best->free_after)) best = Candidate{offset, free_after};
  }
  CHECK(best.has_value(), "the area ", name_of(area_), " of ", capacity_bytes_, " B has no place for ", bytes, " B");
  return best->offset;
}

void AreaCutter::reserve(uint64_t bytes) {
  if (bytes > 0) reserve_at(place_for(bytes), bytes);
}

void AreaCutter::reserve_at(uint64_t offset_bytes, uint64_t bytes) {
  CHECK(reserved_bytes_ == 0, reserved_bytes_, " B of ", name_of(area_), " are reserved and not cut");
  reserved_at_ = offset_bytes;
  reserved_bytes_ = bytes;
}

void AreaCutter::cut(const Plan& plan, Move& move, uint64_t bytes) {
  if (reserved_bytes_ == 0) reserve(bytes);
  CHECK(bytes <= reserved_bytes_, bytes, " B of ", reserved_bytes_, " that are reserved");
  const uint64_t begin = reserved_at_, end = begin + bytes;
  reserved_at_ += bytes;
  reserved_bytes_ -= bytes;
  const MoveId taker = static_cast<MoveId>(plan.moves.size());
  move.area = area_;
  move.place_offset_bytes = first_byte_ + begin;
  move.place_bytes = bytes;
  split(begin);
  split(end);
  for (Stretch& stretch : stretches_) {
    if (stretch.begin < begin || stretch.begin >= end) continue;
    CHECK(!is_held(stretch), "move ", taker, " would fill what move ", stretch.taker, " holds of ", name_of(area_));
    if (stretch.release != kNoMove) {
      move.after.push_back(stretch.release);
    } else {
      first_.push_back({stretch.begin, stretch.end, taker});
    }
    stretch.taker = taker;
    stretch.release = kNoMove;
  }
  std::sort(move.after.begin(), move.after.end());
  move.after.erase(std::unique(move.after.begin(), move.after.end()), move.after.end());
  auto is_of_taker = [&](const Stretch& stretch) { return stretch.taker == taker; };
  auto first = std::find_if(stretches_.begin(), stretches_.end(), is_of_taker);
  first->end = end;
  stretches_.erase(std::remove_if(first + 1, stretches_.end(), is_of_taker), stretches_.end());
}

void AreaCutter::give_back(MoveId taker, MoveId release) {
  for (Stretch& stretch : stretches_) {
    if (stretch.taker == taker) stretch.release = release;
  }
}

void AreaCutter::close_cycle(Plan& plan) const {
  for (const Stretch& filled : first_) {
    std::vector<MoveId>& waits = plan.moves[filled.taker].after_previous;
    for (const Stretch& last : stretches_) {
      if (last.begin >= filled.end || last.end <= filled.begin || last.release == kNoMove) continue;
      if (std::find(waits.begin(), waits.end(), last.release) == waits.end()) waits.push_back(last.release);
    }
  }
}

}  // namespace penstock
