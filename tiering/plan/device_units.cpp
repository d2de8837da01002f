#include "tiering/plan/device_units.h"

#include "tiering/plan/pass_bytes.h"
#include "tiering/plan/plan_moves.h"

namespace penstock {

DeviceUnits::DeviceUnits(const Workload& workload, const TileMap& tiles, bool on_device, uint64_t capacity_bytes)
    : keeps_(on_device && workload.keeps_weights),
      kept_(workload.units.size()),
      area_(Area::device_units, 0, capacity_bytes) {
  if (keeps_) kept_at_ = kept_units_bytes(workload, tiles);
}

void DeviceUnits::reserve(uint64_t bytes) {
  if (!keeps_) area_.reserve(bytes);
}

void DeviceUnits::cut(const Plan& plan, Move& move, uint32_t unit, uint64_t bytes) {
  if (keeps_) area_.reserve_at(kept_at_[unit], kept_at_[unit + 1] - kept_at_[unit]);
  area_.cut(plan, move, bytes);
}

void DeviceUnits::brought(uint32_t unit, const Brought& weights) {
  if (keeps_ && weights.taker != kNoMove) kept_[unit] = weights;
}

void DeviceUnits::end_use(Plan& plan, MoveId taker, MoveId after) {
  if (!keeps_ && taker != kNoMove) area_.give_back(taker, release(plan, taker, {after}));
}

void DeviceUnits::end_step(Plan& plan, MoveId after) {
  for (const std::optional<Brought>& kept : kept_) {
    if (kept) area_.give_back(kept->taker, release(plan, kept->taker, {after}));
  }
}

}  // namespace penstock
