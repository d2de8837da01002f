#include "runtime/engine/forward_weights.h"

#include <algorithm>
#include <utility>

namespace penstock::engine {

ForwardWeights::ForwardWeights(const Plan& plan, HostMemory& memory, aio::TileStore& store, IoEngine& io)
    : plan_(plan), memory_(memory), store_(store), io_(io), uses_(plan.activations.size()) {
  for (const Compute& compute : plan.computes) {
    UsePlaces& use = uses_[compute.use];
    if (!use.units.empty()) continue;  // where its first pass finds them
    for (const Compute::Weights& weights : compute.weights) {
      use.units.push_back(weights.unit);
      if (weights.brought_by == kNoMove) continue;
      const Move& brought = plan.moves[weights.brought_by];
      use.places.push_back({weights.unit, brought.place_offset_bytes, brought.place_bytes});
    }
  }
}

ForwardWeights::~ForwardWeights() {
  auto is_under_way = [](const auto& use_and_fetch) { return use_and_fetch.second.left > 0; };
  io_.wait_until([&] { return std::ranges::none_of(fetched_, is_under_way); });
}

void ForwardWeights::want(uint32_t use) {
  if (!fetched_.contains(use) && make_room(use)) fetch(use);
}

bool ForwardWeights::is_settled(uint32_t use) const {
  const auto found = fetched_.find(use);
  return found != fetched_.end() && found->second.left == 0;
}

Result<std::vector<std::span<std::byte>>> ForwardWeights::hold(uint32_t use) {
  if (Status failed = fetched_.at(use).status; !failed.ok()) {
    fetched_.erase(use);
    return failed;
  }
  held_ = use;
  std::vector<std::span<std::byte>> views;
  auto place = uses_[use].places.begin();
  for (uint32_t unit : uses_[use].units) {
    const bool was_brought = place != uses_[use].places.end() && place->unit == unit;
    leases_.push_back(was_brought ? memory_.units().share(place->offset_bytes, place->length_bytes)
                                  : memory_.share_unit(unit));
    if (was_brought) ++place;
    views.push_back(leases_.back().bytes());
  }
  want(static_cast<uint32_t>((use + 1) % uses_.size()));
  return views;
}

void ForwardWeights::release() {
  leases_.clear();
  held_.reset();
}

bool ForwardWeights::overlap(const UsePlaces& one, const UsePlaces& other) {
  return std::ranges::any_of(one.places, [&](const Place& a) {
    return std::ranges::any_of(other.places, [&](const Place& b) {
      return a.offset_bytes < b.offset_bytes + b.length_bytes && b.offset_bytes < a.offset_bytes + a.length_bytes;
    });
  });
}

bool ForwardWeights::make_room(uint32_t use) {
  for (const auto& [other, fetch] : fetched_) {
    const bool may_go = other != held_ && fetch.left == 0;
    if (!may_go && overlap(uses_[use], uses_[other])) return false;
  }
  std::erase_if(fetched_, [&](const auto& other) { return overlap(uses_[use], uses_[other.first]); });
  return true;
}

void ForwardWeights::fetch(uint32_t use) {
  fetched_[use].left = uses_[use].places.size();
  for (const Place& place : uses_[use].places) {
    const uint64_t asked = read_unit({plan_.tiles, store_, io_}, place.unit, memory_.units(), place.offset_bytes,
                                     ++deadline_, [this, use](const Status& status) {
                                       Fetched& of = fetched_.at(use);
                                       if (of.status.ok()) of.status = status;
                                       --of.left;
                                     });
    moved_.read_bytes += asked;
  }
}

}  // namespace penstock::engine
