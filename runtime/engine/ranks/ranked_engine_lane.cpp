// What RankedEngine has its lane do: it gathers weights and adds gradients up beside the trainer.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/engine/ranks/rank_agreement.h"
#include "runtime/engine/ranks/rank_places.h"
#include "runtime/engine/ranks/ranked_engine.h"
#include "runtime/engine/ranks/stopwatch.h"
#include "tiering/plan/pass_bytes.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kPieceElements = 4096;  // in fp32 half of a first-level cache; whole blocks of codes

}  // namespace

Status RankedEngine::drain() { return passed_on(lane_->wait_for_all()); }

Status RankedEngine::wait_for(CollectiveLane::Number number) {
  const Stopwatch waiting(waited_s_);
  return passed_on(lane_->wait_for(number));
}

// -- weights ----------------------------------------------------------------------------------------------------------

// Of two visits one after another, one begins where the memory does, and the other ends where it ends.
std::vector<uint64_t> RankedEngine::places_of(uint32_t use, uint32_t visit) const {
  const uint64_t weight_bytes = bytes_of(model().form.weight);
  std::vector<uint64_t> places;
  uint64_t all = 0;
  for (uint32_t unit : model().uses[use].units) {
    places.push_back(options_.keeps_weights ? kept_at_[unit] : all);
    all += place_bytes(model().units[unit].elements * weight_bytes);
  }
  const uint64_t there = weights_device_ ? taken_.on_device.weights : taken_.gathered_bytes;
  if (options_.keeps_weights || visit % 2 == 0) return places;
  for (uint64_t& place : places) place += there - all;
  return places;
}

std::span<std::byte> RankedEngine::computed_with(uint64_t place, uint64_t bytes) const {
  if (weights_device_) return weights_device_->memory(place, bytes);
  return {memory(gathered_begin_ + place), bytes};
}

std::shared_ptr<RankedEngine::Gathering> RankedEngine::next_gathering(uint32_t use, uint32_t visit) {
  const uint64_t weight_bytes = bytes_of(model().form.weight);
  const std::vector<uint32_t>& units = model().uses[use].units;
  const std::vector<uint64_t> computed = places_of(use, visit);
  auto gathering = std::make_shared<Gathering>();
  uint64_t passing = 0, coding = 0;  // on the way to the device, and of what is gathered in codes
  for (size_t i = 0; i < units.size(); ++i) {
    const uint32_t unit = units[i];
    if (options_.keeps_weights && is_gathered_[unit]) continue;
    is_gathered_[unit] = true;
    const uint64_t bytes = model().units[unit].elements * weight_bytes;
    const uint64_t place =
        taken_.on_device.gathers ? computed[i] : gathered_begin_ + (weights_device_ ? passing : computed[i]);
    passing += place_bytes(bytes);
    const bool is_coded = gathered_code(model(), unit).has_value();
    const uint64_t gathered_at = is_coded ? coded_begin_ + coding : place;
    auto way_bytes = [&](uint64_t elements) { return gathered_way_bytes(model(), unit, elements); };
    for (uint32_t member : map_.group(rank())) {
      const ElementRun shard = map_.shard(unit, member);
      gathering->shards.push_back({member, gathered_at + way_bytes(shard.begin), way_bytes(shard.elements())});
    }
    const ElementRun own = map_.shard(unit, rank());
    const std::span<std::byte> computes = computed_with(computed[i], bytes);
    const std::span<std::byte> whole = taken_.on_device.gathers ? computes : std::span(memory(place), bytes);
    Gathering::Place at{unit, whole, whole.subspan(own.begin * weight_bytes, own.elements() * weight_bytes), computes};
    if (is_coded) {
      const uint64_t coded_bytes = way_bytes(model().units[unit].elements);
      at.coded = {memory(gathered_at), coded_bytes};
      at.own_coded = at.coded.subspan(way_bytes(own.begin), way_bytes(own.elements()));
      coding += place_bytes(coded_bytes);
    }
    gathering->places.push_back(at);
  }
  if (gathering->shards.empty()) return nullptr;
  if (weights_device_) gathering->readers = weights_device_->readers();
  return gathering;
}

Status RankedEngine::carry_out(Gathering& gathering) {
  PENSTOCK_TRY(taken_.on_device.gathers ? gather_on_device(gathering) : gather_in_host(gathering));
  for (const Collective::Shard& shard : gathering.shards) gathered_bytes_ += shard.rank != rank() ? shard.bytes : 0;
  return Status();
}

std::vector<RankDevice::Within> RankedEngine::own_shards(const Gathering& gathering) const {
  std::vector<RankDevice::Within> own;
  for (const Gathering::Place& place : gathering.places) {
    for (const UnitWeights& view : gathering.views) {
      if (shards_.unit_here[place.unit] == view.unit) own.push_back({view.bytes, place.own});
    }
  }
  return own;
}

Status RankedEngine::gather_in_host(Gathering& gathering) {
  const std::vector<RankDevice::Within> own = own_shards(gathering);
  if (weights_device_) {
    std::vector<RankDevice::Download> down;
    for (const auto& [on_device, in_host] : own) down.push_back({on_device, in_host});
    PENSTOCK_TRY(passed_on(weights_device_->finish_uploads()));
    PENSTOCK_TRY(passed_on(weights_device_->download(down, gathering.written)));
  } else {
    for (const auto& [source, target] : own) std::memcpy(target.data(), source.data(), target.size());
  }
  for (const Gathering::Place& place : gathering.places) encode_own(place);
  PENSTOCK_TRY(run([&](Collective::Then then) { ranks_.passes().gather(gathering.shards, std::move(then)); }));
  for (const Gathering::Place& place : gathering.places) decode(place);
  if (!weights_device_) return Status();
  std::vector<RankDevice::Run> up;
  for (const Gathering::Place& place : gathering.places) up.push_back({place.on_device, place.gathered});
  auto uploaded = weights_device_->upload(up, gathering.readers);
  PENSTOCK_TRY(passed_on(uploaded.status()));
  gathering.uploaded = std::move(*uploaded);
  return Status();
}

// A collective begins when what reads or writes its memory has ended, and what it has brought is there when it ends: so
// the lane waits, and no stream needs to.
Status RankedEngine::gather_on_device(Gathering& gathering) {
  const std::vector<RankDevice::Within> own = own_shards(gathering);
  PENSTOCK_TRY(passed_on(weights_device_->copy_within(own, gathering.written, gathering.readers)));
  return run([&](Collective::Then then) { ranks_.among_devices()->gather(gathering.shards, std::move(then)); });
}

void RankedEngine::encode_own(const Gathering::Place& place) {
  const std::optional<BlockCode> code = gathered_code(model(), place.unit);
  if (!code) return;
  const Dtype dtype = model().form.weight;
  workers_->for_pieces(place.own.size() / bytes_of(dtype), kBlockElements, [&](uint64_t begin, uint64_t end) {
    codec_.encode(*code, dtype, place.own.data() + begin * bytes_of(dtype), end - begin,
                  place.own_coded.data() + records_bytes(*code, begin));
  });
}

// All of the unit, what this rank has given too.
void RankedEngine::decode(const Gathering::Place& place) {
  const std::optional<BlockCode> code = gathered_code(model(), place.unit);
  if (!code) return;
  const Dtype dtype = model().form.weight;
  workers_->for_pieces(model().units[place.unit].elements, kBlockElements, [&](uint64_t begin, uint64_t end) {
    codec_.decode(*code, place.coded.data() + records_bytes(*code, begin), end - begin, dtype,
                  place.gathered.data() + begin * bytes_of(dtype));
  });
}

void RankedEngine::gather_visit(uint32_t visit) {
  const auto first = std::find(visit_of_pass_.begin(), visit_of_pass_.end(), visit);
  const ComputePass& pass = passes_[static_cast<size_t>(first - visit_of_pass_.begin())];
  const std::shared_ptr<Gathering> gathering = next_gathering(pass.use, visit);
  if (!gathering) return;
  gatherings_[visit] = gathering;
  gathering->number = lane_->announce([this, gathering] { return carry_out(*gathering); });
  here_->when_weights(pass,
                      [gathering, lane = std::weak_ptr(lane_), ranks = &ranks_](const Status& status, auto views) {
                        gathering->views = std::move(views);
                        if (!status.ok()) ranks->fail(status);
                        if (const auto there = lane.lock()) there->provide(gathering->number, status);
                      });
}

// The visit's weights, and those of the next one while it is computed.
Status RankedEngine::gather_in_step() {
  const uint32_t visit = visit_of_pass_[next_pass_];
  const bool next_is_ahead = visit + 1 < ahead_.size() && ahead_[visit + 1];
  for (; next_visit_ <= visit + (next_is_ahead ? 1 : 0); ++next_visit_) gather_visit(next_visit_);
  gatherings_.erase(gatherings_.begin(), gatherings_.lower_bound(visit));
  const auto here = gatherings_.find(visit);
  if (here == gatherings_.end()) return Status();
  PENSTOCK_TRY(wait_for(here->second->number));
  if (!weights_device_) return Status();
  return passed_on(weights_device_->make_wait(pass_stream_, here->second->uploaded));
}

Status RankedEngine::gather_for_forward(const ComputePass& pass, const std::vector<UnitWeights>& views) {
  const std::shared_ptr<Gathering> gathering = next_gathering(pass.use, 0);
  if (!gathering) return Status();
  gathering->views = views;
  if (weights_device_) {
    auto written = weights_device_->record(pass_stream_);
    PENSTOCK_TRY(passed_on(written.status()));
    gathering->written = *written;
  }
  PENSTOCK_TRY(wait_for(lane_->post([this, gathering] { return carry_out(*gathering); })));
  if (!weights_device_) return Status();
  return passed_on(weights_device_->make_wait(pass_stream_, gathering->uploaded));
}

Result<std::vector<UnitWeights>> RankedEngine::gathered(const ComputePass& pass,
                                                        const std::vector<UnitWeights>& views) {
  PENSTOCK_TRY(in_forward_ ? gather_for_forward(pass, views) : gather_in_step());
  const std::vector<uint32_t>& units = model().uses[pass.use].units;
  const std::vector<uint64_t> places = places_of(pass.use, in_forward_ ? 0 : visit_of_pass_[next_pass_]);
  std::vector<UnitWeights> whole;
  for (size_t i = 0; i < units.size(); ++i) {
    const uint64_t elements = model().units[units[i]].elements, bytes = elements * bytes_of(model().form.weight);
    whole.push_back({units[i], elements, computed_with(places[i], bytes)});
  }
  return whole;
}

// -- gradients over all ranks -----------------------------------------------------------------------------------------

Status RankedEngine::begin_reducing(const std::vector<uint32_t>& units) {
  PENSTOCK_TRY(end_reducing());  // those before have the memory
  const Stopwatch adding(intake_s_);
  reducing_ = std::make_shared<Reducing>();
  for (uint32_t unit : units) {
    const uint64_t elements = model().units[unit].elements;
    if (device_sums_) {
      const uint64_t bytes = elements * bytes_of(model().form.gradient);
      device_sums_->give(unit, intake_->has_values(unit), adding_up().memory().subspan(given_at_[unit], bytes));
    } else {
      workers_->for_pieces(elements, kBlockElements, [&](uint64_t begin, uint64_t end) { give(unit, begin, end); });
    }
    intake_->finished(unit);
    reducing_->units.push_back({unit, skips_[unit]});
  }
  if (device_sums_) {
    auto given = device_sums_->given();
    PENSTOCK_TRY(passed_on(given.status()));
    reducing_->given = *given;
  }
  reducing_->number = lane_->post([this, reducing = reducing_] {
    if (device_sums_) PENSTOCK_TRY(passed_on(gradients_device_->wait_for(reducing->given)));
    for (Reducing::OfUnit& of : reducing->units) PENSTOCK_TRY(add_up(of));
    return Status();
  });
  return Status();
}

void RankedEngine::give(uint32_t unit, uint64_t begin, uint64_t end) {
  const Dtype dtype = model().form.gradient;
  const std::optional<BlockCode> code = reduced_code(model());
  std::vector<double> unused(ceil_div(end - begin, kBlockElements));
  if (!code) {
    std::byte* const place = memory(given_at_[unit] + begin * bytes_of(dtype));
    return intake_->finish_run(unit, {}, {begin, end - begin, place, unused});
  }
  alignas(64) std::array<std::byte, kPieceElements * sizeof(float)> rounded;
  for (uint64_t at = begin; at < end; at += kPieceElements) {
    const uint64_t count = std::min(kPieceElements, end - at);
    intake_->finish_run(unit, {}, {at, count, rounded.data(), unused});
    codec_.encode(*code, dtype, rounded.data(), count, memory(given_at_[unit] + records_bytes(*code, at)));
  }
}

// What no rank has a gradient of is absent; the others' is added up, those that have none giving zeros.
Status RankedEngine::add_up(Reducing::OfUnit& of) {
  std::vector<bool>& absent = of.absent;
  PENSTOCK_TRY(passed_on(all_of_all(ranks_, absent)));
  if (absent.back()) return Status();
  const uint32_t unit = of.unit;
  const uint64_t bytes = bytes_of(model().form.gradient);
  const uint64_t shard_begin = map_.shard(unit, rank()).begin;
  auto place_of = [&](uint32_t other) {
    const ElementRun piece = map_.piece(unit, other);
    return Collective::Shard{other, summed_at_[unit] + (piece.begin - shard_begin) * bytes, piece.elements() * bytes};
  };
  const Collective::Shard mine = place_of(rank());
  PENSTOCK_TRY(reduce(unit, adding_up().memory().subspan(mine.offset_bytes, mine.bytes)));
  reduced_bytes_ += reduced_way_bytes(model(), map_.piece(unit, rank()).elements()) * (ranks() - 1);
  const uint64_t shard_bytes = map_.shard(unit, rank()).elements() * bytes;
  if (map_.group_ranks() != ranks()) {
    reduced_bytes_ += shard_bytes - mine.bytes;
    std::vector<Collective::Shard> pieces;
    for (uint32_t twin : map_.twins(rank())) pieces.push_back(place_of(twin));
    PENSTOCK_TRY(run([&](Collective::Then then) { adding_up().gather(pieces, std::move(then)); }));
  }
  if (!device_sums_ || shard_bytes == 0) return Status();
  const RankDevice::Download down{adding_up().memory().subspan(summed_at_[unit], shard_bytes),
                                  {memory(added_at_[unit]), shard_bytes}};
  return passed_on(gradients_device_->download({&down, 1}, Event()));
}

Status RankedEngine::reduce(uint32_t unit, std::span<std::byte> target) {
  if (const std::optional<BlockCode> code = reduced_code(model())) return reduce_codes(unit, *code, target.data());
  const Dtype dtype = model().form.gradient;
  Collective::Reduction reduction{
      .dtype = dtype, .offset_bytes = given_at_[unit], .parts = {}, .target_dtype = dtype, .target = target};
  for (uint32_t other = 0; other < ranks(); ++other) {
    const ElementRun piece = map_.piece(unit, other);
    reduction.parts.push_back({piece.begin, piece.end});
  }
  return run([&](Collective::Then then) { adding_up().reduce(reduction, std::move(then)); });
}

Status RankedEngine::reduce_codes(uint32_t unit, BlockCode code, std::byte* target) {
  Collective::Collection collection{.offset_bytes = given_at_[unit], .parts = {}, .target_offset_bytes = collected_at_};
  for (uint32_t other = 0; other < ranks(); ++other) {
    const ElementRun piece = map_.piece(unit, other);
    collection.parts.push_back({records_bytes(code, piece.begin), records_bytes(code, piece.end)});
  }
  PENSTOCK_TRY(run([&](Collective::Then then) { ranks_.passes().collect(collection, std::move(then)); }));
  const auto [records_begin, records_end] = collection.parts[rank()];
  auto records_of = [&, begin = records_begin, bytes = records_end - records_begin](uint32_t other) {
    return memory(other == rank() ? given_at_[unit] + begin : collected_at_ + other * bytes);
  };
  const Dtype dtype = model().form.gradient;
  auto add_up_piece = [&](uint64_t begin, uint64_t end) {
    alignas(64) std::array<float, kPieceElements> values, sums;
    auto* const decoded = reinterpret_cast<std::byte*>(values.data());
    auto* const summed = reinterpret_cast<std::byte*>(sums.data());
    for (uint64_t at = begin; at < end; at += kPieceElements) {
      const uint64_t count = std::min(kPieceElements, end - at);
      for (uint32_t other = 0; other < ranks(); ++other) {
        std::byte* const place = other == 0 ? summed : decoded;
        codec_.decode(code, records_of(other) + records_bytes(code, at), count, Dtype::fp32, place);
        if (other > 0) kernels_.accumulate(Dtype::fp32, decoded, sums.data(), count);
      }
      kernels_.cast(Dtype::fp32, summed, dtype, target + at * bytes_of(dtype), count);
    }
  };
  workers_->for_pieces(map_.piece(unit, rank()).elements(), kBlockElements, add_up_piece);
  return Status();
}

// What has been added up goes to the updates of this rank's shards.
Status RankedEngine::end_reducing() {
  const std::shared_ptr<Reducing> reducing = std::exchange(reducing_, nullptr);
  if (!reducing) return Status();
  PENSTOCK_TRY(wait_for(reducing->number));
  for (const Reducing::OfUnit& of : reducing->units) {
    const std::optional<uint32_t> here = shards_.unit_here[of.unit];
    if (!here) continue;
    const std::vector<std::optional<uint32_t>>& parameters = shards_.parameter_here[of.unit];
    std::vector<bool> absent(here_->request().workload.units[*here].parameters.size() + 1);
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]) absent[*parameters[i]] = of.absent[i];
    }
    absent.back() = of.absent.back();
    PENSTOCK_TRY(passed_on(here_->gradient_of_all(*here, absent)));
  }
  return Status();
}

std::vector<VisitTraffic> RankedEngine::traffic() const {
  const uint64_t gradient_bytes = bytes_of(model().form.gradient);
  std::vector<VisitTraffic> traffic(ahead_.size());
  std::vector<bool> is_there(model().units.size());
  std::vector<uint32_t> completing(model().units.size());  // by unit: the visit
  for (size_t i = 0; i < visits_.size(); ++i) {
    const Compute& compute = plan().computes[i];
    const bool begins = i == 0 || visits_[i - 1] != visits_[i];
    for (uint32_t unit : model().uses[compute.use].units) {
      if (compute.direction == Direction::backward) completing[unit] = visits_[i];
      if (!begins || map_.group_ranks() == 1 || (options_.keeps_weights && is_there[unit])) continue;
      is_there[unit] = true;
      auto way_bytes = [&](uint64_t elements) { return gathered_way_bytes(model(), unit, elements); };
      const uint64_t own_bytes = way_bytes(map_.shard(unit, rank()).elements());
      traffic[visits_[i]].gathered_bytes += way_bytes(model().units[unit].elements) - own_bytes;
    }
  }
  for (uint32_t unit = 0; unit < model().units.size(); ++unit) {
    if (!model().units[unit].trainable) continue;
    const uint64_t piece = map_.piece(unit, rank()).elements(), shard = map_.shard(unit, rank()).elements();
    traffic[completing[unit]].reduced_bytes +=
        reduced_way_bytes(model(), piece) * (ranks() - 1) + (shard - piece) * gradient_bytes;
  }
  return traffic;
}

}  // namespace penstock::engine
