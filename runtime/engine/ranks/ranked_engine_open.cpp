// What a rank takes, and how all of them make or open their stores together.
#include "runtime/engine/ranks/ranked_engine.h"

#include <algorithm>

#include "runtime/engine/ranks/rank_agreement.h"
#include "runtime/engine/ranks/rank_places.h"
#include "runtime/engine/ranks/set_making.h"
#include "tiering/plan/pass_bytes.h"
#include "tiering/plan/plan_search.h"
#include "tiering/plan/rank_memory.h"
#include "tiering/plan/visits.h"
#include "tiering/store/store_hash.h"

namespace penstock::engine {
namespace {

constexpr int kOpenings = 3;  // of a store, to find the step that all have
constexpr uint64_t kPassesSeed = 0x5353'4150;
constexpr uint64_t kReadAtOnceBytes = kMiB;    // of what all ranks have, where gradients on their way have no memory
constexpr uint64_t kStagedElementsLeast = 64;  // that are added up at once; see NcclCarrier

uint32_t group_ranks_of(const RankedOptions& options, uint32_t ranks) {
  return options.group_ranks == 0 ? ranks : options.group_ranks;
}

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

Status no_common_step(const Ranks& ranks, const std::vector<std::array<uint64_t, 1>>& steps) {
  std::string words;
  for (uint32_t rank = 0; rank < ranks.ranks(); ++rank) {
    words += text(rank == 0 ? "" : ", ", ranks.name_of(rank), " at step ", steps[rank][0]);
  }
  return Status(Code::kCorrupt, text("ranks: their stores have no step in common: ", words),
                "put back a copy of all ranks' stores, or make a new store with --force");
}

}  // namespace

Status RankedEngine::check_form(const PlanRequest& request) {
  const Workload& model = request.workload;
  if (model.form.moments == MomentForm::bf16) {
    return Status(Code::kUsage,
                  "ranks: bf16 moments are not implemented for several ranks: what is drawn to round them "
                  "would depend on shards",
                  "take fp32 or int8 moments");
  }
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
  const uint32_t group = group_ranks_of(options, ranks);
  if (ranks % group != 0) {
    return Status(Code::kUsage, text("ranks: ", ranks, " ranks in groups of ", group),
                  "give a number of ranks a group, by mics_shard_size or zero_hpz_partition_size, that divides the "
                  "number of ranks");
  }
  if (model.scope != StepScope::training) {
    return Status(Code::kUsage, "ranks: only updates are planned, without passes through the model",
                  "plan with StepScope::training and the model's uses");
  }
  if ((model.codes.weights || model.codes.frozen_weights) && group_ranks_of(options, ranks) == 1) {
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
  return check_form(options.engine.request);
}

RankMemory RankedEngine::memory_of(const RankedOptions& options, uint32_t ranks) {
  const Workload& model = options.engine.request.workload;
  const uint32_t group = group_ranks_of(options, ranks);
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

RankedEngine::RankedEngine(const RankedOptions& options, Ranks& ranks)
    : options_(options),
      ranks_(ranks),
      map_(options.engine.request.workload.units, ranks.ranks(), group_ranks_of(options, ranks.ranks())),
      shards_(workload_of(options.engine.request.workload, map_, ranks.rank())),
      taken_(memory_of(options, ranks.ranks())),
      commits_(ranks) {
  lay_out();
}

// What is still to be committed waits for all ranks. Where the others have not come here but go on training, nobody may
// wait for the other: their operation is another one, and ends all.
RankedEngine::~RankedEngine() {
  ranks_.came();
  ranks_.step_ended();
  if (in_step_) ranks_.fail(Status(Code::kInterrupted, "its engine was closed inside the step"));
  if (lane_) lane_->stop();
  if (is_open_) (void)agree_on(ranks_, Status());
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
  const ShardMap map(here.workload.units, place.ranks, group_ranks_of(options, place.ranks));
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

Result<EngineOptions> RankedEngine::options_here() {
  if (const uint64_t needed = taken_.shared_on_device(); needed > 0) {
    const Collective* devices = ranks_.among_devices();
    const uint64_t there = devices != nullptr ? devices->memory().size() : 0;
    if (there < needed) {
      return Status(
          Code::kUsage,
          text("ranks: ", bytes_text(needed), " of memory shared among devices needed, ", bytes_text(there), " taken"),
          "meet with RanksOptions::device, or gather weights in host memory");
    }
  }
  if (ranks_.passes().memory().size() < taken_.shared_bytes()) {
    return Status(Code::kUsage, text("ranks: ", bytes_text(taken_.shared_bytes()), " of shared memory needed, ",
                                     bytes_text(ranks_.passes().memory().size()), " taken"));
  }
  EngineOptions here = options_.engine;
  PENSTOCK_TRY_ASSIGN(request, request_of(options_, {.rank = ranks_.rank(), .ranks = ranks_.ranks(), .meeting = {}}));
  here.request = std::move(request);
  here.ranks = this;
  return here;
}

// What decides which verbs follow one another, and when roots are written, rank 0 chooses for all.
Status RankedEngine::agree_on_plan() {
  PENSTOCK_TRY_ASSIGN(here, options_here());
  Status mine;
  std::array<uint64_t, 3> chosen{};
  if (ranks_.rank() == 0) {
    const Result<ChosenPlan> plan = choose_plan(here.request);
    mine = plan.status();
    if (plan.ok()) {
      const Durability durability = plan->plan.durability;
      chosen = {plan->plan.micro_batch_group, static_cast<uint64_t>(durability.kind), durability.steps};
    }
  }
  PENSTOCK_TRY(agree_on(ranks_, mine));
  std::vector<std::array<uint64_t, 3>> all(ranks_.ranks());
  PENSTOCK_TRY(exchange_numbers(ranks_, chosen, all));
  options_.engine.request.choices.micro_batch_group = static_cast<uint32_t>(all[0][0]);
  options_.engine.request.durability = {static_cast<Durability::Kind>(all[0][1]), static_cast<uint32_t>(all[0][2])};
  return Status();
}

Status RankedEngine::create(const RankedOptions& options, Ranks& ranks, const InitialValues& initial,
                            aio::CreateOptions::Existing existing) {
  PENSTOCK_TRY(check(options, ranks.ranks()));
  RankedEngine engine(options, ranks);
  PENSTOCK_TRY(engine.agree_on_plan());
  std::vector<StoreId> ids(ranks.ranks());
  PENSTOCK_TRY(exchange_numbers(ranks, aio::draw_store_id(), ids));
  PENSTOCK_TRY_ASSIGN(here, engine.options_here());
  here.store_id = ids[0];
  const InitialValues of_shard = values_of_rank(initial, engine.shards_, engine.map_, ranks.rank());
  return agree_on(ranks, Engine::create(here, of_shard, existing));
}

Result<std::unique_ptr<RankedEngine>> RankedEngine::open(const RankedOptions& options, Ranks& ranks) {
  PENSTOCK_TRY(check(options, ranks.ranks()));
  auto engine = std::unique_ptr<RankedEngine>(new RankedEngine(options, ranks));
  PENSTOCK_TRY(engine->agree_on_plan());
  PENSTOCK_TRY(engine->open_at_common_step());
  std::vector<uint64_t> passes;
  for (const Compute& compute : engine->plan().computes) {
    passes.insert(passes.end(), {static_cast<uint64_t>(compute.direction), compute.use, compute.micro_batch});
  }
  const uint64_t order[] = {passes.size(), store_hash(std::as_bytes(std::span(passes)), kPassesSeed)};
  PENSTOCK_TRY(expect_same(ranks, "the order of passes", order));
  engine->visits_ = visits_of(engine->plan());
  engine->ahead_ = visits_ahead(engine->plan());
  PENSTOCK_TRY(all_of_all(ranks, engine->ahead_));
  auto workers = cpu_optim::UpdateWorkers::make({.threads = options.engine.update_threads, .cpus = {}});
  PENSTOCK_TRY(agree_on(ranks, workers.status()));
  engine->workers_ = std::move(*workers);
  PENSTOCK_TRY(agree_on(ranks, engine->open_device()));
  auto lane = CollectiveLane::make();
  PENSTOCK_TRY(agree_on(ranks, lane.status()));
  engine->lane_ = std::move(*lane);
  engine->open_sums();
  if (engine->here_->predicted_step_s() > 0) {
    engine->prediction_.reset(penstock::predicted_step_s(engine->forecast(), engine->here_->request().machine));
  }
  double longest_pass_s = 0;
  for (const Use& use : engine->model().uses) longest_pass_s = std::max(longest_pass_s, use.forward_s + use.backward_s);
  ranks.expect_pass(longest_pass_s);
  engine->is_open_ = true;
  return engine;
}

Status RankedEngine::open_device() {
  const std::span<std::byte> all = ranks_.passes().memory();
  const uint64_t weights = taken_.on_device.weights, gradient = taken_.on_device.gradient;
  if (taken_.on_device.reduces()) {
    // As rank 0 has chosen the plan's group of micro-batches, for all.
    const uint64_t sums = lay_out_sums(model(), plan().micro_batch_group).bytes;
    PENSTOCK_TRY_ASSIGN(device, RankDevice::open(options_.engine.device, sums, all));
    gradients_device_ = std::move(device);
  }
  if (weights > 0) {
    const MakeDevice& make = options_.engine.device;
    auto device = taken_.on_device.gathers
                      ? RankDevice::open_over(make, ranks_.among_devices()->memory().first(weights))
                      : RankDevice::open(make, weights, all.subspan(gathered_begin_));
    PENSTOCK_TRY(device.status());
    weights_device_ = std::move(*device);
  }
  if (gradient > 0) {
    PENSTOCK_TRY_ASSIGN(device, RankDevice::open(options_.engine.device, gradient, all.first(gathered_begin_)));
    gradients_device_ = std::move(device);
  }
  return Status();
}

// In the memory that is given to it, of this rank's trainer alone.
void RankedEngine::open_sums() {
  SumLayout layout = lay_out_sums(model(), plan().micro_batch_group);
  if (taken_.on_device.reduces()) {
    device_sums_ = std::make_unique<RankDeviceSums>(model(), std::move(layout), *gradients_device_);
    intake_ = std::make_unique<GradientIntake>(model(), *device_sums_, *workers_);
    return;
  }
  sums_ = Buffer::on_heap(layout.bytes);
  intake_ = std::make_unique<GradientIntake>(model(), layout, sums_.bytes(), *workers_);
}

// Ranks that were killed between two roots differ by a step. Those that are ahead go back: what the step before names
// has not been overwritten, since that waits for the second barrier.
Status RankedEngine::open_at_common_step() {
  PENSTOCK_TRY_ASSIGN(here, options_here());
  std::vector<std::array<uint64_t, 1>> steps(ranks_.ranks());
  for (int opening = 0; opening < kOpenings; ++opening) {
    Status mine;
    if (!here_) {
      Result<std::unique_ptr<Engine>> opened = Engine::open(here);
      mine = opened.status();
      if (opened.ok()) here_ = std::move(*opened);
    }
    const Status all = agree_on(ranks_, mine);
    if (!all.ok() && opening > 0) return no_common_step(ranks_, steps);
    PENSTOCK_TRY(all);
    PENSTOCK_TRY(expect_one_run(ranks_, here_->store_id()));
    PENSTOCK_TRY(exchange_numbers(ranks_, std::array<uint64_t, 1>{here_->steps_done()}, steps));
    const uint64_t common = std::min_element(steps.begin(), steps.end())->front();
    if (common == std::max_element(steps.begin(), steps.end())->front()) return Status();
    here.newest_step = common;
    if (here_->steps_done() > common) here_.reset();
  }
  return no_common_step(ranks_, steps);
}

}  // namespace penstock::engine
