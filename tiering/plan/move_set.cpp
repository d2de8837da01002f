#include "tiering/plan/move_set.h"

#include <algorithm>
#include <bit>

namespace penstock {

MoveSet::MoveSet(size_t count) {
  size_t words = count;
  do {
    words = (words + 63) / 64;
    levels_.emplace_back(std::max<size_t>(words, 1));
  } while (words > 1);
}

MoveId MoveSet::first_below(size_t level, uint64_t word) const {
  for (;; --level) {
    word = word * 64 + static_cast<uint64_t>(std::countr_zero(levels_[level][word]));
    if (level == 0) return static_cast<MoveId>(word);
  }
}

MoveId MoveSet::after(MoveId id) const {
  uint64_t place = id;
  for (size_t level = 0; level < levels_.size(); ++level, place /= 64) {
    const uint64_t behind = place % 64 == 63 ? 0 : ~uint64_t{0} << (place % 64 + 1);
    const uint64_t left = levels_[level][place / 64] & behind;
    if (left == 0) continue;
    const uint64_t next = place / 64 * 64 + static_cast<uint64_t>(std::countr_zero(left));
    return level == 0 ? static_cast<MoveId>(next) : first_below(level - 1, next);
  }
  return kNoMove;
}

void MoveSet::insert(MoveId id) {
  uint64_t place = id;
  for (std::vector<uint64_t>& level : levels_) {
    const bool was_empty = level[place / 64] == 0;
    level[place / 64] |= uint64_t{1} << place % 64;
    if (!was_empty) return;
    place /= 64;
  }
}

void MoveSet::erase(MoveId id) {
  uint64_t place = id;
  for (std::vector<uint64_t>& level : levels_) {
    level[place / 64] &= ~(uint64_t{1} << place % 64);
    if (level[place / 64] != 0) return;
    place /= 64;
  }
}

}  // namespace penstock
