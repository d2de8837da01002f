#include "runtime/engine/forward_weights.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "runtime/engine/coded_weights.h"
#include "tiering/plan/pass_bytes.h"

namespace penstock::engine {
namespace {

constexpr std::chrono::milliseconds kPollPause{1};

MemoryRun place_of(const Move& move) { return {move.place_offset_bytes, move.place_bytes}; }

}  // namespace

ForwardWeights::ForwardWeights(Parts parts) : parts_(std::move(parts)), uses_(parts_.plan.activations.size()) {
  if (parts_.room == Room::own) {
    for (size_t use = 0; use < uses_.size(); ++use) uses_[use] = own_places_of(parts_.workload.uses[use]);
    return;
  }
  for (const Compute& compute : parts_.plan.computes) {
    UsePlaces& use = uses_[compute.use];
    if (!use.empty()) continue;  // where its first pass finds them
    for (const Compute::Weights& weights : compute.weights) use.push_back(places_of(weights));
  }
}

// Back from the move that brought them to where they are used.
ForwardWeights::UnitPlaces ForwardWeights::places_of(const Compute::Weights& weights) const {
  UnitPlaces places{.unit = weights.unit, .host = {}, .device = {}, .dequantised = {}};
  for (MoveId id = weights.brought_by; id != kNoMove; id = parts_.plan.moves[id].source) {
    const Move& move = parts_.plan.moves[id];
    if (move.kind == MoveKind::fetch_weight) places.host = place_of(move);
    if (move.kind == MoveKind::upload_weight) places.device = place_of(move);
    if (move.kind == MoveKind::dequantise_weight) places.dequantised = place_of(move);
  }
  return places;
}

// Side by side, from the room's first byte on.
ForwardWeights::UsePlaces ForwardWeights::own_places_of(const Use& use) const {
  UsePlaces all;
  uint64_t in_host = 0, on_device = 0;
  auto take = [](uint64_t& at, uint64_t bytes) {
    at += bytes;
    return MemoryRun{at - bytes, bytes};
  };
  for (uint32_t unit : use.units) {
    UnitPlaces& places = all.emplace_back(UnitPlaces{.unit = unit, .host = {}, .device = {}, .dequantised = {}});
    if (parts_.plan.rests_on_device(unit)) continue;
    const WeightBytes bytes = weight_bytes(parts_.workload, parts_.plan.tiles, unit);
    const bool rests = parts_.memory.holds_weight(parts_.plan.tiles.first_of(unit));
    if (!rests) places.host = take(in_host, bytes.at_rest);
    if (parts_.device != nullptr) places.device = take(on_device, bytes.at_rest);
    if (bytes.dequantised > 0) {
      places.dequantised = take(parts_.device != nullptr ? on_device : in_host, bytes.dequantised);
    }
  }
  return all;
}

BufferArea& ForwardWeights::units() const {
  return parts_.room == Room::own ? parts_.memory.forward_units() : parts_.memory.units();
}

ForwardWeights::~ForwardWeights() {
  done_->is_over = true;
  while (is_under_way()) {
    const size_t ended = parts_.io.poll() + (parts_.device != nullptr ? parts_.device->device().poll() : 0);
    go_on();
    if (ended == 0) parts_.io.wait(kPollPause);
  }
  for (const auto& [use, event] : read_until_) {
    for (Result<bool> reached = false; reached.ok() && !*reached; reached = parts_.device->device().reached(event)) {
      std::this_thread::sleep_for(kPollPause);
    }
  }
}

void ForwardWeights::want(uint32_t use) {
  go_on();
  if (fetched_.contains(use)) return;
  const std::vector<uint32_t>& units = parts_.workload.uses[use].units;
  if (!std::ranges::all_of(units, parts_.is_current) || !make_room(use)) return;
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
    on_device_.erase(use);
    return failed;
  }
  held_ = use;
  std::vector<std::span<std::byte>> views;
  for (const UnitPlaces& places : uses_[use]) {
    if (parts_.plan.rests_on_device(places.unit)) {
      leases_.push_back(parts_.device->share(parts_.device->weights_of(places.unit)));
      views.push_back(leases_.back().bytes());
      continue;
    }
    if (parts_.device != nullptr) {
      views.push_back(on_device(places.dequantised ? *places.dequantised : *places.device));
      continue;
    }
    leases_.push_back(places.dequantised ? units().share(places.dequantised->offset_bytes, places.dequantised->bytes)
                                         : share_at_rest(places));
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

Lease ForwardWeights::share_at_rest(const UnitPlaces& places) const {
  return places.host ? units().share(places.host->offset_bytes, places.host->bytes)
                     : parts_.memory.share_unit(places.unit);
}

std::span<std::byte> ForwardWeights::on_device(const MemoryRun& run) const {
  if (parts_.room == Room::own) return parts_.device->forward_units().subspan(run.offset_bytes, run.bytes);
  return parts_.device->at(Area::device_units, run.offset_bytes, run.bytes);
}

bool ForwardWeights::overlap(const std::optional<MemoryRun>& one, const std::optional<MemoryRun>& other) {
  return one && other && one->offset_bytes < other->offset_bytes + other->bytes &&
         other->offset_bytes < one->offset_bytes + one->bytes;
}

// What is dequantised lies in one memory with what was uploaded, or, where there is no device, with what was fetched.
bool ForwardWeights::overlap(const UnitPlaces& one, const UnitPlaces& other) const {
  const bool has_device = parts_.device != nullptr;
  const auto &beside = has_device ? one.device : one.host, &beside_other = has_device ? other.device : other.host;
  return overlap(one.host, other.host) || overlap(one.device, other.device) ||
         overlap(one.dequantised, other.dequantised) || overlap(one.dequantised, beside_other) ||
         overlap(beside, other.dequantised);
}

bool ForwardWeights::overlap(const UsePlaces& one, const UsePlaces& other) const {
  return std::ranges::any_of(one, [&](const UnitPlaces& a) {
    return std::ranges::any_of(other, [&](const UnitPlaces& b) { return overlap(a, b); });
  });
}

bool ForwardWeights::make_room(uint32_t use) {
  for (const auto& [other, fetch] : fetched_) {
    const bool may_go = other != held_ && fetch.has_value();
    if (!may_go && overlap(uses_[use], uses_[other])) return false;
  }
  auto is_in_the_way = [&](const auto& other) { return overlap(uses_[use], uses_[other.first]); };
  std::erase_if(fetched_, is_in_the_way);
  std::erase_if(on_device_, is_in_the_way);
  return true;
}

void ForwardWeights::bring(uint32_t use, const UnitPlaces& places, const std::shared_ptr<Join>& join) {
  auto arrived = [this, use, places, join](const Status& status) {
    if (status.ok() && places.device) return upload(use, places, join);
    if (status.ok() && places.dequantised) return dequantise(places, join);
    join->end(status);
  };
  if (!places.host) return arrived(Status());
  drive_bytes_.read_bytes += read_unit({parts_.plan.tiles, parts_.store, parts_.io, parts_.workers, poster()},
                                       places.unit, units(), places.host->offset_bytes, ++deadline_, arrived);
}

void ForwardWeights::upload(uint32_t use, const UnitPlaces& places, const std::shared_ptr<Join>& join) {
  Lease weights = share_at_rest(places);
  const std::span<std::byte> target = on_device(*places.device);
  const CopyRun whole{0, 0, std::min<uint64_t>(weights.size_bytes(), target.size())};
  const Lease& place = on_device_[use].emplace_back(parts_.device->lend(target));
  Copy copy = parts_.device->device().copy({&whole, 1}, std::move(weights), place.also(), readers_of(use));
  std::move(copy.transfer).then([this, use, places, join](Result<Lease> result) {
    const Status status = result.status();
    { const Lease arrived = result.ok() ? std::move(*result) : Lease(); }
    if (status.ok() && places.dequantised) return dequantise_on_device(use, places, join);
    join->end(status);
  });
}

void ForwardWeights::dequantise(const UnitPlaces& places, const std::shared_ptr<Join>& join) {
  Lease weights = units().lend(places.dequantised->offset_bytes, places.dequantised->bytes);
  dequantise_by(parts_.workers, CodedUnit(parts_.workload, parts_.plan.tiles, places.unit), share_at_rest(places),
                std::move(weights), poster(), [join] { join->end(); });
}

void ForwardWeights::dequantise_on_device(uint32_t use, const UnitPlaces& places, const std::shared_ptr<Join>& join) {
  const CodedUnit unit(parts_.workload, parts_.plan.tiles, places.unit);
  Device& device = parts_.device->device();
  const Lease& target = on_device_[use].emplace_back(parts_.device->lend(on_device(*places.dequantised)));
  const Result<Event> done = dequantise_on(device, unit, on_device(*places.device), target.bytes(), readers_of(use));
  if (!done.ok()) return join->end(done.status());
  if (const Status woken = device.wake_at(*done); !woken.ok()) return join->end(woken);
  dequantising_.push_back({join, *done});
}

std::vector<Event> ForwardWeights::readers_of(uint32_t use) const {
  std::vector<Event> readers;
  for (const auto& [other, event] : read_until_) {
    if (overlap(uses_[other], uses_[use])) readers.push_back(event);
  }
  return readers;
}

Post ForwardWeights::poster() {
  return [this, done = done_, &mailbox = parts_.mailbox](std::function<void()> then) {
    {
      std::lock_guard lock(done->mutex);
      done->waiting.push_back(std::move(then));
    }
    // It may find that this has ended meanwhile, which waits for what is under way without messages.
    mailbox.post([this, done] {
      if (!done->is_over) go_on();
    });
  };
}

void ForwardWeights::go_on() {
  std::vector<std::function<void()>> done;
  {
    std::lock_guard lock(done_->mutex);
    done.swap(done_->waiting);
  }
  for (const std::function<void()>& then : done) then();
  for (Dequantising& work : std::exchange(dequantising_, {})) {
    const Result<bool> ended = parts_.device->device().reached(work.done);
    if (ended.ok() && !*ended) {
      dequantising_.push_back(std::move(work));
    } else {
      work.join->end(ended.status());
    }
  }
}

bool ForwardWeights::is_under_way() const {
  return std::ranges::any_of(fetched_, [](const auto& fetched) { return !fetched.second.has_value(); });
}

}  // namespace penstock::engine
