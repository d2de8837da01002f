// What a rank is asked for: what several ranks cannot do, what a rank takes beside its plan, and where that lies.
#include <algorithm>

#include "runtime/engine/ranks/rank_places.h"
#include "runtime/engine/ranks/ranked_engine.h"
#include "tiering/plan/pass_bytes.h"
#include "tiering/plan/rank_memory.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kReadAtOnceBytes = kMiB;    // of what all ranks have, where gradients on their way have no memory
constexpr uint64_t kStagedElementsLeast = 64;  // that are added up at once; see NcclCarrier

// As the planner has it: see Plan::on_device.
bool computes_on_device(const EngineOptions& options) {
  return options.device && options.request.machine.copies_to_device();
}

// The gradient of a unit becomes complete in the first of its uses.
bool completes_in(const Workload& model, uint32_t unit, uint32_t use) { return uses_of(model, unit).front() == use; }

// Of two uses that passes come to one after another. Between groups of micro-batches, backward's last is before the
// first of all.
uint64_t two_in_a_row(const Workload& model, const std::vector<uint64_t>& of_uses) {
  const size_t last = std::min<size_t>(first_trained_use(model), of_uses.size() - 1);
  uint64_t most = model.micro_batches > 1 ? of_uses[last] + of_uses.front() : of_uses.front();
  for (size_t use = 1; use < of_uses.size(); ++use) most = std::max(most, of_uses[use - 1] + of_uses[use]);
  return most;
}

// What others send of a piece, twice, so that one half is filled while the other is added up.
uint64_t staging_bytes(const Workload& model, const ShardMap& map) {
  const uint32_t ranks = map.ranks();
  const uint64_t element_bytes = (ranks - 1) * bytes_of(model.form.gradient) + sizeof(float);
  uint64_t longest = kStagedElementsLeast;
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    for (uint32_t rank = 0; rank < ranks; ++rank) longest = std::max(longest, map.piece(unit, rank).elements());
  }
  const uint64_t half = round_up(longest, kStagedElementsLeast) * element_bytes;
  return 2 * round_up(std::min(half, RanksOptions().staging_bytes / 2), kAlignmentBytes);
}

// Of gradients: nothing of them but what this rank has added up is in host memory, and a place for read().
void add_up_on_device(const PlanRequest& request, const ShardMap& map, RankMemory& memory) {
  memory.downloaded_bytes = 0;
  memory.on_device.given = memory.given_bytes;
  memory.on_device.added = memory.added_bytes;
  if (memory.given_bytes == 0) return;
  memory.on_device.sums = sum_bytes(request);
  memory.on_device.staging = staging_bytes(request.workload, map);
  memory.given_bytes = std::min(memory.given_bytes, kReadAtOnceBytes);
}

}  // namespace

Status RankedEngine::check_form(const PlanRequest& request) {
  const Workload& model = request.workload;
  for (const Unit& unit : model.units) {
    if (!unit.code) continue;
    return Status(
        Code::kUsage,
        text("ranks: unit ", unit.name, ": frozen weights in int8 or NF4 are not implemented for ", "several ranks"),
        "let them rest in the dtype that computes with them");
  }
  if (request.slots == 1) {
    return Status(Code::kUsage, "ranks: one slot a tile: a step of some ranks could not be taken back",
                  "give the store two slots a tile");
  }
  return Status();
}

Status RankedEngine::check(const RankedOptions& options, uint32_t ranks) {
  const Workload& model = options.engine.request.workload;
  PENSTOCK_TRY(validate(model));
  const uint32_t group = options.ranks_of_group(ranks);
  if (ranks % group != 0) {
    return Status(Code::kUsage, text("ranks: ", ranks, " ranks in groups of ", group),
                  "give a number of ranks a group, by mics_shard_size or zero_hpz_partition_size, that divides the "
                  "number of ranks");
  }
  if (model.scope != StepScope::training) {
    return Status(Code::kUsage, "ranks: only updates are planned, without passes through the model",
                  "plan with StepScope::training and the model's uses");
  }
  if ((model.codes.weights || model.codes.frozen_weights) && options.ranks_of_group(ranks) == 1) {
    return Status(Code::kUsage, "ranks: weights are to be gathered in int8, and every rank has all of them",
                  "take stage 3, or leave out zero_quantized_weights and "
                  "zero_quantized_nontrainable_weights");
  }
  if ((model.codes.weights || model.codes.frozen_weights) && options.shares_on_device) {
    return Status(Code::kUsage, "ranks: weights are to be gathered in int8 on devices, and the CPU alone decodes them",
                  "gather them in host memory, or leave out zero_quantized_weights and "
                  "zero_quantized_nontrainable_weights");
  }
  if (model.codes.gradients && ranks == 1) {
    return Status(Code::kUsage, "ranks: gradients are to be sent in int4, and one rank sends none",
                  "leave out zero_quantized_gradients");
  }
  if (options.engine.request.choices.device_share.value_or(0) > 0) {
    return Status(Code::kUsage, "ranks: units are to rest on the device, and its kernels know nothing of other ranks",
                  "leave out penstock.device_share");
  }
  return check_form(options.engine.request);
}

std::vector<BudgetLine> RankMemory::lines() const {
  std::vector<BudgetLine> all;
  auto line = [&all](Tier tier, const char* name, uint64_t bytes) {
    if (bytes > 0) all.push_back({.tier = tier, .name = name, .bytes = bytes});
  };
  line(Tier::device, "gathered weights", on_device.weights);
  line(Tier::device, "gradients given", on_device.gradient + on_device.given);
  line(Tier::device, "gradients added up", on_device.added);
  line(Tier::device, "gradients of other ranks", on_device.staging);
  line(Tier::device, "sums of this rank", on_device.sums);
  line(Tier::host, "gathered weights", gathered_bytes);
  line(Tier::host, "gradients given", given_bytes);
  line(Tier::host, "gradients added up", added_bytes);
  line(Tier::host, "norm blocks", squares_bytes);
  line(Tier::host, "weights in codes", coded_bytes);
  line(Tier::host, "gradients in codes", collected_bytes);
  line(Tier::host, "downloaded gradients", downloaded_bytes);
  line(Tier::host, "sums of this rank", sums_bytes);
  return all;
}

RankMemory RankedEngine::memory_of(const RankedOptions& options, uint32_t ranks) {
  const Workload& model = options.engine.request.workload;
  const uint32_t group = options.ranks_of_group(ranks);
  const ShardMap map(model.units, ranks, group);
  const uint64_t weight_bytes = bytes_of(model.form.weight), gradient_bytes = bytes_of(model.form.gradient);
  RankMemory memory;
  uint64_t all_weights = 0, blocks = 0;
  auto piece_bytes = [&](uint32_t unit) {
    uint64_t most = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      most = std::max(most, reduced_way_bytes(model, map.piece(unit, rank).elements()));
    }
    return most;
  };
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    const uint64_t elements = model.units[unit].elements;
    all_weights += place_bytes(elements * weight_bytes);
    blocks += ceil_div(elements, kBlockElements);
    if (!model.units[unit].trainable) continue;
    memory.downloaded_bytes = std::max(memory.downloaded_bytes, place_bytes(elements * sizeof(float)));
    if (!reduced_code(model)) continue;
    memory.collected_bytes = std::max(memory.collected_bytes, place_bytes(ranks * piece_bytes(unit)));
  }
  std::vector<uint64_t> of_uses;  // weights
  for (uint32_t use = 0; use < model.uses.size(); ++use) {
    uint64_t weights = 0, coded = 0, added = 0, given = 0;
    for (uint32_t unit : model.uses[use].units) {
      const uint64_t elements = model.units[unit].elements;
      weights += place_bytes(elements * weight_bytes);
      if (gathered_code(model, unit)) coded += place_bytes(gathered_way_bytes(model, unit, elements));
      if (!model.units[unit].trainable || !completes_in(model, unit, use)) continue;
      added += place_bytes(map.largest_shard(unit) * gradient_bytes);
      given += place_bytes(reduced_way_bytes(model, elements));
    }
    of_uses.push_back(weights);
    memory.coded_bytes = std::max(memory.coded_bytes, coded);
    memory.added_bytes = std::max(memory.added_bytes, added);
    memory.given_bytes = std::max(memory.given_bytes, given);
  }
  uint64_t largest = *std::max_element(of_uses.begin(), of_uses.end()), two = two_in_a_row(model, of_uses);
  if (group == 1) largest = two = all_weights = 0;
  const uint64_t computed = options.keeps_weights ? all_weights : two;
  if (computes_on_device(options.engine)) {
    memory.gathered_bytes = options.shares_on_device ? 0 : largest;
    memory.on_device.weights = computed;
    memory.on_device.gathers = options.shares_on_device;
    if (options.shares_on_device && !reduced_code(model)) {
      add_up_on_device(options.engine.request, map, memory);
    } else {
      memory.on_device.gradient = memory.downloaded_bytes;
      memory.downloaded_bytes = round_up(memory.downloaded_bytes, kAlignmentBytes);
    }
  } else {
    memory.gathered_bytes = computed;
    memory.downloaded_bytes = 0;
  }
  memory.squares_bytes = place_bytes(blocks * sizeof(double));
  if (!memory.on_device.reduces()) memory.sums_bytes = sum_bytes(options.engine.request);
  return memory;
}

void RankedEngine::lay_out() {
  const uint64_t weight_bytes = bytes_of(model().form.weight), gradient_bytes = bytes_of(model().form.gradient);
  gathered_begin_ = taken_.downloaded_bytes;
  given_begin_ = gathered_begin_ + taken_.gathered_bytes;
  const uint64_t added_begin = given_begin_ + taken_.given_bytes;
  squares_at_ = added_begin + taken_.added_bytes;
  coded_begin_ = squares_at_ + taken_.squares_bytes;
  collected_at_ = coded_begin_ + taken_.coded_bytes;
  uint64_t at = 0, block = 0;
  for (const Unit& unit : model().units) {
    kept_at_.push_back(at);
    first_block_.push_back(block);
    at += place_bytes(unit.elements * weight_bytes);
    block += ceil_div(unit.elements, kBlockElements);
  }
  given_at_.resize(model().units.size());
  added_at_.resize(model().units.size());
  summed_at_.resize(model().units.size());
  // Where they are added up on the device: behind the weights there.
  const RankMemory::OnDevice& there = taken_.on_device;
  const uint64_t given_there = there.gathers ? there.weights : 0, added_there = given_there + there.given;
  for (uint32_t use = 0; use < model().uses.size(); ++use) {
    uint64_t given = there.reduces() ? given_there : given_begin_, added = added_begin;
    for (uint32_t unit : model().uses[use].units) {
      if (!model().units[unit].trainable || !completes_in(model(), unit, use)) continue;
      given_at_[unit] = given;
      added_at_[unit] = added;
      summed_at_[unit] = there.reduces() ? added_there + (added - added_begin) : added;
      given += place_bytes(reduced_way_bytes(model(), model().units[unit].elements));
      added += place_bytes(map_.largest_shard(unit) * gradient_bytes);
    }
  }
}

Result<PlanRequest> RankedEngine::request_of(const RankedOptions& options, const RankPlace& place) {
  PlanRequest here = options.engine.request;
  const ShardMap map(here.workload.units, place.ranks, options.ranks_of_group(place.ranks));
  const RankMemory taken = memory_of(options, place.ranks);
  const uint64_t needed = taken.shared_bytes() + taken.sums_bytes, there = here.budgets.host_bytes;
  if (there <= needed) {
    return Status(Code::kDoesNotFit,
                  text("ranks: gathered weights and gradients under way take ", bytes_text(needed), " of host memory, ",
                       bytes_text(there), " are given"),
                  "give each rank a larger host budget");
  }
  here.budgets.host_bytes = there - needed;
  if (const uint64_t on_device = taken.on_device.all(); on_device > 0) {
    if (here.budgets.device_bytes <= on_device) {
      return Status(Code::kDoesNotFit,
                    text("ranks: gathered weights and gradients under way take ", bytes_text(on_device),
                         " of device memory, ", bytes_text(here.budgets.device_bytes), " are given"),
                    "give each rank a larger device budget");
    }
    here.budgets.device_bytes -= on_device;
  }
  here.workload = workload_of(here.workload, map, place.rank).workload;
  here.choices.device_share = 0;  // gradients are updated with where they have been added up
  // Ranks of one host copy: of its memory's traffic, a byte read and a byte written. Devices with no links of their own
  // send over those to the host.
  if (here.machine.collective_gbps <= 0 && place.hosts == 1) {
    here.machine.collective_gbps = here.machine.host_gbps / 2;
    if (taken.shared_on_device() > 0) {
      here.machine.collective_gbps = std::min(here.machine.collective_gbps, here.machine.device_to_host_gbps);
    }
  }
  return here;
}

}  // namespace penstock::engine
