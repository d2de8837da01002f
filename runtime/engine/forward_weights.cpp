#include "runtime/engine/forward_weights.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace penstock::engine {
namespace {

constexpr std::chrono::milliseconds kPollPause{1};

MemoryRun place_of(const Move& move) { return {move.place_offset_bytes, move.place_bytes}; }

}  // namespace

ForwardWeights::ForwardWeights(const Plan& plan, HostMemory& memory, DeviceMemory* device, aio::TileStore& store,
                               IoEngine& io)
    : plan_(plan), memory_(memory), device_(device), store_(store), io_(io), uses_(plan.activations.size()) {
  for (const Compute& compute : plan.computes) {
    UsePlaces& use = uses_[compute.use];
    if (!use.empty()) continue;  // where its first pass finds them
    for (const Compute::Weights& weights : compute.weights) {
      UnitPlaces places;
      places.unit = weights.unit;
      for (MoveId id = weights.brought_by; id != kNoMove;) {
        const Move& brought = plan.moves[id];
        id = kNoMove;
        if (brought.kind == MoveKind::fetch_weight) places.host = place_of(brought);
        if (brought.kind != MoveKind::lift_weight) continue;
        places.device = place_of(brought);
        const auto fetch = std::ranges::find_if(
            brought.after, [&](MoveId before) { return plan.moves[before].kind == MoveKind::fetch_weight; });
        if (fetch != brought.after.end()) id = *fetch;
      }
      use.push_back(places);
    }
  }
}

ForwardWeights::~ForwardWeights() {
  while (is_under_way()) {
    const size_t ended = io_.poll() + (device_ != nullptr ? device_->device().poll() : 0);
    if (ended == 0) io_.wait(kPollPause);
  }
  for (const auto& [use, event] : read_until_) {
    for (Result<bool> reached = false; reached.ok() && !*reached; reached = device_->device().reached(event)) {
      std::this_thread::sleep_for(kPollPause);
    }
  }
}

void ForwardWeights::want(uint32_t use) {
  if (fetched_.contains(use) || !make_room(use)) return;
  fetched_[use];
  auto join = std::make_shared<Join>([this, use](const Status& status) { fetched_.at(use) = status; });
  for (const UnitPlaces& places : uses_[use]) {
    join->begin();
    bring(use, places, join);
  }
  join->end();
}

bool ForwardWeights::is_settled(uint32_t use) const {
  const auto found = fetched_.find(use);
  return found != fetched_.end() && found->second.has_value();
}

Result<std::vector<std::span<std::byte>>> ForwardWeights::hold(uint32_t use) {
  if (Status failed = *fetched_.at(use); !failed.ok()) {
    fetched_.erase(use);
    return failed;
  }
  held_ = use;
  std::vector<std::span<std::byte>> views;
  for (const UnitPlaces& places : uses_[use]) {
    if (places.device) {
      views.push_back(device_->at(Area::device_units, places.device->offset_bytes, places.device->bytes));
      continue;
    }
    leases_.push_back(places.host ? memory_.units().share(places.host->offset_bytes, places.host->bytes)
                                  : memory_.share_unit(places.unit));
    views.push_back(leases_.back().bytes());
  }
  want(static_cast<uint32_t>((use + 1) % uses_.size()));
  return views;
}

void ForwardWeights::release(Event done) {
  leases_.clear();
  if (held_ && done) read_until_[*held_] = std::move(done);
  held_.reset();
}

bool ForwardWeights::overlap(const std::optional<MemoryRun>& one, const std::optional<MemoryRun>& other) {
  return one && other && one->offset_bytes < other->offset_bytes + other->bytes &&
         other->offset_bytes < one->offset_bytes + one->bytes;
}

bool ForwardWeights::overlap(const UsePlaces& one, const UsePlaces& other) {
  return std::ranges::any_of(one, [&](const UnitPlaces& a) {
    return std::ranges::any_of(
        other, [&](const UnitPlaces& b) { return overlap(a.host, b.host) || overlap(a.device, b.device); });
  });
}

bool ForwardWeights::make_room(uint32_t use) {
  for (const auto& [other, fetch] : fetched_) {
    const bool may_go = other != held_ && fetch.has_value();
    if (!may_go && overlap(uses_[use], uses_[other])) return false;
  }
  std::erase_if(fetched_, [&](const auto& other) { return overlap(uses_[use], uses_[other.first]); });
  return true;
}

void ForwardWeights::bring(uint32_t use, const UnitPlaces& places, const std::shared_ptr<Join>& join) {
  auto arrived = [this, use, places, join](const Status& status) {
    if (status.ok() && places.device) return lift(use, places, join);
    join->end(status);
  };
  if (!places.host) return arrived(Status());
  moved_.read_bytes += read_unit({plan_.tiles, store_, io_}, places.unit, memory_.units(), places.host->offset_bytes,
                                 ++deadline_, arrived);
}

void ForwardWeights::lift(uint32_t use, const UnitPlaces& places, const std::shared_ptr<Join>& join) {
  Lease weights = places.host ? memory_.units().share(places.host->offset_bytes, places.host->bytes)
                              : memory_.share_unit(places.unit);
  const std::span<std::byte> target =
      device_->at(Area::device_units, places.device->offset_bytes, places.device->bytes);
  const CopyRun whole{0, 0, std::min<uint64_t>(weights.size_bytes(), target.size())};
  std::vector<Event> readers;
  for (const auto& [other, event] : read_until_) {
    if (overlap(uses_[other], uses_[use])) readers.push_back(event);
  }
  Copy copy = device_->device().copy({&whole, 1}, std::move(weights), Lease::over(Tier::device, target), readers);
  std::move(copy.transfer).then([join](const Result<Lease>& result) { join->end(result.status()); });
}

bool ForwardWeights::is_under_way() const {
  return std::ranges::any_of(fetched_, [](const auto& fetched) { return !fetched.second.has_value(); });
}

}  // namespace penstock::engine
