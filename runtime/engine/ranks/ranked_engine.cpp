#include "runtime/engine/ranks/ranked_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "runtime/engine/ranks/rank_agreement.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kPlaceBytes = 256;  // places in shared memory begin at multiples of it
constexpr int kOpenings = 3;           // of a store, to find the step that all have

uint64_t place_bytes(uint64_t bytes) { return round_up(bytes, kPlaceBytes); }

uint32_t group_ranks_of(const RankedOptions& options, uint32_t ranks) {
  return options.group_ranks == 0 ? ranks : options.group_ranks;
}

Status check(const RankedOptions& options, uint32_t ranks) {
  const Workload& model = options.engine.request.workload;
  PENSTOCK_TRY(validate(model));
  const uint32_t group = group_ranks_of(options, ranks);
  if (ranks % group != 0) {
    return Status(Code::kUsage, text("ranks: ", ranks, " ranks in groups of ", group),
                  "give a number of ranks a group that divides the number of ranks");
  }
  if (model.pass != Pass::training) {
    return Status(Code::kUsage, "ranks: only updates are planned, without passes through the model",
                  "plan with Pass::training and the model's uses");
  }
  if (options.engine.device) {
    return Status(Code::kUsage, "ranks: computing on a device is not implemented for several ranks",
                  "plan for a machine with 0 devices");
  }
  if (model.form.moments == MomentForm::bf16) {
    return Status(Code::kUsage,
                  "ranks: bf16 moments are not implemented for several ranks: what is drawn to round them "
                  "would depend on shards",
                  "take fp32 or int8 moments");
  }
  if (options.engine.request.slots == 1) {
    return Status(Code::kUsage, "ranks: one slot a tile: a step of some ranks could not be taken back",
                  "give the store two slots a tile");
  }
  return Status();
}

uint64_t sum_bytes(const PlanRequest& request) {
  const uint32_t most = request.workload.micro_batches;
  const uint32_t group = request.choices.micro_batch_group.value_or(most);
  return std::max(lay_out_sums(request.workload, group).bytes,
                  request.choices.micro_batch_group ? 0 : lay_out_sums(request.workload, 1).bytes);
}

}  // namespace

RankMemory RankedEngine::memory_of(const RankedOptions& options, uint32_t ranks) {
  const Workload& model = options.engine.request.workload;
  const uint32_t group = group_ranks_of(options, ranks);
  const ShardMap map(model.units, ranks, group);
  const uint64_t weight_bytes = bytes_of(model.form.weight), gradient_bytes = bytes_of(model.form.gradient);
  RankMemory memory;
  uint64_t all_weights = 0, blocks = 0;
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    const uint64_t elements = model.units[unit].elements;
    all_weights += place_bytes(elements * weight_bytes);
    blocks += ceil_div(elements, kBlockElements);
    if (!model.units[unit].trainable) continue;
    memory.given_bytes = std::max(memory.given_bytes, place_bytes(elements * gradient_bytes));
  }
  for (const Use& use : model.uses) {
    uint64_t weights = 0, added = 0;
    for (uint32_t unit : use.units) {
      weights += place_bytes(model.units[unit].elements * weight_bytes);
      uint64_t shard = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) shard = std::max(shard, map.shard(unit, rank).elements());
      if (model.units[unit].trainable) added += place_bytes(shard * gradient_bytes);
    }
    memory.gathered_bytes = std::max(memory.gathered_bytes, weights);
    memory.added_bytes = std::max(memory.added_bytes, added);
  }
  if (options.keeps_weights) memory.gathered_bytes = all_weights;
  if (group == 1) memory.gathered_bytes = 0;
  memory.squares_bytes = place_bytes(blocks * sizeof(double));
  memory.sums_bytes = sum_bytes(options.engine.request);
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
  if (in_step_) ranks_.fail(Status(Code::kInterrupted, "its engine was closed inside the step"));
  if (is_open_) (void)agree_on(ranks_, Status());
}

void RankedEngine::lay_out() {
  const uint64_t weight_bytes = bytes_of(model().form.weight), gradient_bytes = bytes_of(model().form.gradient);
  const uint64_t added_at = taken_.gathered_bytes + taken_.given_bytes;
  given_at_ = taken_.gathered_bytes;
  squares_at_ = added_at + taken_.added_bytes;
  uint64_t at = 0, block = 0;
  for (const Unit& unit : model().units) {
    gathered_at_.push_back(at);
    first_block_.push_back(block);
    at += place_bytes(unit.elements * weight_bytes);
    block += ceil_div(unit.elements, kBlockElements);
  }
  added_at_.resize(model().units.size());
  for (const Use& use : model().uses) {
    uint64_t of_use = added_at;
    for (uint32_t unit : use.units) {
      // Its gradient becomes complete in the first of its uses.
      const bool is_first = added_at_[unit] == 0;
      if (is_first) added_at_[unit] = of_use;
      uint64_t shard = 0;
      for (uint32_t rank = 0; rank < ranks_.ranks(); ++rank) shard = std::max(shard, map_.shard(unit, rank).elements());
      of_use += place_bytes(shard * gradient_bytes);
    }
  }
}

// -- opening ----------------------------------------------------------------------------------------------------------

Result<EngineOptions> RankedEngine::options_here() {
  EngineOptions here = options_.engine;
  here.request.workload = shards_.workload;
  here.ranks = this;
  const uint64_t needed = taken_.shared_bytes() + taken_.sums_bytes, there = here.request.budgets.host_bytes;
  if (ranks_.passes().memory().size() < taken_.shared_bytes()) {
    return Status(Code::kUsage, text("ranks: ", bytes_text(taken_.shared_bytes()), " of shared memory needed, ",
                                     bytes_text(ranks_.passes().memory().size()), " taken"));
  }
  if (there <= needed) {
    return Status(Code::kDoesNotFit,
                  text("ranks: gathered weights and gradients under way take ", bytes_text(needed), " of host memory, ",
                       bytes_text(there), " are given"),
                  "give each rank a larger host budget");
  }
  here.request.budgets.host_bytes = there - needed;
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
  StoreId id{};
  if (ranks.rank() == 0) {
    std::random_device random;
    for (uint64_t& word : id) word = uint64_t{random()} << 32 | random();
  }
  std::vector<StoreId> ids(ranks.ranks());
  PENSTOCK_TRY(exchange_numbers(ranks, id, ids));
  PENSTOCK_TRY_ASSIGN(here, engine.options_here());
  here.store_id = ids[0];
  auto of_shard = [&](uint32_t unit, uint64_t first, std::span<float> values) {
    const std::optional<uint32_t> whole = engine.shards_.model_unit[unit];
    if (whole) return initial(*whole, engine.map_.shard(*whole, ranks.rank()).begin + first, values);
    std::fill(values.begin(), values.end(), 0.0f);
    return Status();
  };
  return agree_on(ranks, Engine::create(here, of_shard, existing));
}

Result<std::unique_ptr<RankedEngine>> RankedEngine::open(const RankedOptions& options, Ranks& ranks) {
  PENSTOCK_TRY(check(options, ranks.ranks()));
  auto engine = std::unique_ptr<RankedEngine>(new RankedEngine(options, ranks));
  PENSTOCK_TRY(engine->agree_on_plan());
  PENSTOCK_TRY(engine->open_at_common_step());
  uint64_t passes = 0;
  for (const Compute& compute : engine->plan().computes) {
    passes = passes * 31 + compute.use * 7 + compute.micro_batch * 3 + (compute.direction == Direction::forward);
  }
  const uint64_t plan[] = {engine->plan().computes.size(), passes};
  PENSTOCK_TRY(expect_same(ranks, "the order of passes", plan));
  auto workers = cpu_optim::UpdateWorkers::make({.threads = options.engine.update_threads, .cpus = {}});
  PENSTOCK_TRY(agree_on(ranks, workers.status()));
  engine->workers_ = std::move(*workers);
  const SumLayout sums = lay_out_sums(engine->model(), engine->plan().micro_batch_group);
  engine->sums_ = Buffer::on_heap(sums.bytes);
  engine->intake_ = std::make_unique<GradientIntake>(engine->model(), sums, engine->sums_.bytes(), *engine->workers_);
  engine->is_open_ = true;
  return engine;
}

// Ranks that were killed between two roots differ by a step. Those that are ahead go back: what the step before names
// has not been overwritten, since that waits for the second barrier.
Status RankedEngine::open_at_common_step() {
  PENSTOCK_TRY_ASSIGN(here, options_here());
  for (int opening = 0; opening < kOpenings; ++opening) {
    Status mine;
    if (!here_) {
      Result<std::unique_ptr<Engine>> opened = Engine::open(here);
      mine = opened.status();
      if (opened.ok()) here_ = std::move(*opened);
    }
    PENSTOCK_TRY(agree_on(ranks_, mine));
    PENSTOCK_TRY(expect_one_run(ranks_, here_->store_id()));
    std::vector<std::array<uint64_t, 1>> steps(ranks_.ranks());
    PENSTOCK_TRY(exchange_numbers(ranks_, std::array<uint64_t, 1>{here_->steps_done()}, steps));
    const uint64_t common = std::min_element(steps.begin(), steps.end())->front();
    if (common == std::max_element(steps.begin(), steps.end())->front()) return Status();
    here.newest_step = common;
    if (here_->steps_done() > common) here_.reset();
  }
  return Status(Code::kCorrupt, "ranks: their stores have no step in common",
                "put back a copy of all ranks' stores, or make a new store with --force");
}

// -- steps ------------------------------------------------------------------------------------------------------------

Status RankedEngine::passed_on(const Status& status) {
  if (status.ok()) return status;
  const Status ended = ranks_.status();
  if (!ended.ok()) return ended;
  if (status.code() != Code::kUsage) ranks_.fail(status);
  return status;
}

Status RankedEngine::run(const std::function<void(Collective::Then)>& operation) {
  return passed_on(wait_for_end(operation));
}

Status RankedEngine::begin(const StepBegin& begin) {
  if (in_step_) return here_->begin(begin);  // which refuses it
  ranks_.at_step(steps_done() + 1);
  uint64_t groups = begin.groups.size();
  for (const Hyper& group : begin.groups) {
    for (double value : {group.lr, group.beta1, group.beta2, group.eps, group.weight_decay}) {
      groups = groups * 0x9e37'79b9'7f4a'7c15 + std::bit_cast<uint64_t>(value);
    }
  }
  const uint64_t numbers[] = {steps_done() + 1, begin.micro_batches, std::bit_cast<uint64_t>(begin.loss_scale), groups};
  PENSTOCK_TRY(expect_same(ranks_, "the step that begins (its number, micro-batches, loss scale and hyper-parameters)",
                           numbers));
  PENSTOCK_TRY(passed_on(here_->begin(begin)));
  in_step_ = true;
  has_asked_all_ = false;
  intake_->begin(begin.micro_batches);
  passes_ = here_->passes();
  next_pass_ = 0;
  is_held_ = false;
  last_pass_.assign(model().units.size(), 0);
  for (size_t i = 0; i < passes_.size(); ++i) {
    if (passes_[i].direction == Direction::forward) continue;
    for (uint32_t unit : model().uses[passes_[i].use].units) last_pass_[unit] = i;
  }
  is_gathered_.assign(model().units.size(), false);
  skips_.clear();
  for (const Unit& unit : model().units) skips_.emplace_back(unit.parameters.size() + 1, false);
  return Status();
}

Status RankedEngine::begin_forward() {
  is_gathered_.assign(model().units.size(), false);
  return passed_on(here_->begin_forward());
}

Result<std::vector<UnitWeights>> RankedEngine::acquire(const ComputePass& pass, Stream stream) {
  auto acquired = here_->acquire(pass, stream);
  PENSTOCK_TRY(passed_on(acquired.status()));
  is_held_ = true;
  std::vector<UnitWeights> views = std::move(*acquired);
  if (map_.group_ranks() == 1) {
    for (UnitWeights& view : views) view.unit = *shards_.model_unit[view.unit];
    return views;
  }
  const uint64_t weight_bytes = bytes_of(model().form.weight);
  std::vector<UnitWeights> whole;
  std::vector<Collective::Shard> shards;
  uint64_t at = 0;
  for (uint32_t unit : model().uses[pass.use].units) {
    const uint64_t elements = model().units[unit].elements;
    const uint64_t place = options_.keeps_weights ? gathered_at_[unit] : at;
    at += place_bytes(elements * weight_bytes);
    whole.push_back({unit, elements, {memory(place), elements * weight_bytes}});
    if (options_.keeps_weights && is_gathered_[unit]) continue;
    is_gathered_[unit] = true;
    for (uint32_t member : map_.group(rank())) {
      const ElementRun shard = map_.shard(unit, member);
      shards.push_back({member, place + shard.begin * weight_bytes, shard.elements() * weight_bytes});
    }
    for (const UnitWeights& view : views) {
      if (shards_.unit_here[unit] != view.unit) continue;
      std::memcpy(memory(place + map_.shard(unit, rank()).begin * weight_bytes), view.bytes.data(), view.bytes.size());
    }
  }
  if (!shards.empty()) {
    PENSTOCK_TRY(run([&](Collective::Then then) { ranks_.passes().gather(shards, std::move(then)); }));
  }
  return whole;
}

Status RankedEngine::release(const ComputePass& pass) {
  const bool is_expected = in_step_ && is_held_ && next_pass_ < passes_.size() && passes_[next_pass_] == pass;
  if (is_expected && pass.direction == Direction::backward) {
    (void)intake_->end_pass(pass.use, pass.micro_batch);
    for (uint32_t unit : model().uses[pass.use].units) {
      if (model().units[unit].trainable && last_pass_[unit] == next_pass_) PENSTOCK_TRY(finish_unit(unit));
    }
  }
  PENSTOCK_TRY(passed_on(here_->release(pass)));
  is_held_ = false;
  if (in_step_) ++next_pass_;
  return Status();
}

Status RankedEngine::gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values,
                              std::optional<Stream>) {
  auto refuse = [&](const std::string& why, const std::string& remedy) {
    return Status(Code::kUsage, text("gradient: unit ", part.unit, ", micro-batch ", part.micro_batch, ": ", why),
                  remedy);
  };
  const bool is_held = in_step_ && is_held_ && passes_[next_pass_].direction == Direction::backward &&
                       passes_[next_pass_].micro_batch == part.micro_batch &&
                       passes_[next_pass_].use == part.use.value_or(passes_[next_pass_].use);
  if (!is_held) {
    return refuse("its backward pass is not acquired",
                  "give gradients between acquire() and release() of their backward pass");
  }
  const Result<GradientIntake::Taken> taken =
      intake_->take({part.unit, passes_[next_pass_].use, part.micro_batch, part.first_element}, {dtype, values});
  return taken.status();
}

Status RankedEngine::absent_gradient(uint32_t unit, Absent absent) {
  auto refuse = [](const std::string& why) { return Status(Code::kUsage, "absent gradient: unit " + why); };
  if (!in_step_) return Status(Code::kUsage, "absent gradient: called outside a step", "call begin() first");
  if (unit >= model().units.size()) return refuse(text(unit, " of ", model().units.size()));
  if (!model().units[unit].trainable) return refuse(model().units[unit].name + " is frozen");
  if (std::string why = intake_->why_not_absent(unit); !why.empty()) return refuse(model().units[unit].name + why);
  if (absent == Absent::zero) return Status();  // what its passes do not give is zero
  intake_->give_up(unit);
  std::fill(skips_[unit].begin(), skips_[unit].end(), true);
  return Status();
}

Status RankedEngine::absent_gradient(ParameterId id, Absent absent) {
  if (!in_step_) return Status(Code::kUsage, "absent gradient: called outside a step", "call begin() first");
  const bool is_there = id.unit < model().units.size() && id.parameter < model().units[id.unit].parameters.size();
  if (!is_there || !model().units[id.unit].trainable) {
    return Status(Code::kUsage, text("absent gradient: parameter ", id.parameter, " of unit ", id.unit,
                                     is_there ? ", which is frozen" : ": there is none"));
  }
  PENSTOCK_TRY(intake_->give_up(id.unit, id.parameter).status());
  std::vector<bool>& skips = skips_[id.unit];
  skips[id.parameter] = absent == Absent::skip;
  // Without any of its parameters nothing is left of it to update.
  skips.back() = std::find(skips.begin(), skips.end() - 1, false) == skips.end() - 1;
  return Status();
}

// What no rank has a gradient of is absent; the others' is added up, those that have none giving zeros.
Status RankedEngine::finish_unit(uint32_t unit) {
  std::vector<bool> absent = skips_[unit];
  PENSTOCK_TRY(passed_on(all_of_all(ranks_, absent)));
  const std::optional<uint32_t> here = shards_.unit_here[unit];
  if (absent.back()) return here ? passed_on(here_->absent_gradient(*here, Absent::skip)) : Status();
  for (uint32_t i = 0; i + 1 < absent.size(); ++i) {
    const std::optional<uint32_t> parameter = shards_.parameter_here[unit][i];
    if (absent[i] && parameter) {
      PENSTOCK_TRY(passed_on(here_->absent_gradient(ParameterId{*here, *parameter}, Absent::skip)));
    }
  }
  return add_up(unit);
}

Status RankedEngine::add_up(uint32_t unit) {
  const Dtype dtype = model().form.gradient;
  const uint64_t bytes = bytes_of(dtype), elements = model().units[unit].elements;
  workers_->for_pieces(elements, kBlockElements, [&](uint64_t begin, uint64_t end) {
    std::vector<double> unused(ceil_div(end - begin, kBlockElements));
    intake_->finish(unit, {}, begin, end - begin, memory(given_at_ + begin * bytes), unused);
  });
  intake_->finished(unit);
  Collective::Reduction reduction{
      .dtype = dtype, .offset_bytes = given_at_, .parts = {}, .target_dtype = dtype, .target = {}};
  for (uint32_t other = 0; other < ranks(); ++other) {
    const ElementRun piece = map_.piece(unit, other);
    reduction.parts.push_back({piece.begin, piece.end});
  }
  const uint64_t shard_begin = map_.shard(unit, rank()).begin;
  auto place_of = [&](uint32_t other) {
    const ElementRun piece = map_.piece(unit, other);
    return Collective::Shard{other, added_at_[unit] + (piece.begin - shard_begin) * bytes, piece.elements() * bytes};
  };
  const Collective::Shard mine = place_of(rank());
  reduction.target = {memory(mine.offset_bytes), mine.bytes};
  PENSTOCK_TRY(run([&](Collective::Then then) { ranks_.passes().reduce(reduction, std::move(then)); }));
  if (map_.group_ranks() == ranks()) return Status();
  std::vector<Collective::Shard> pieces;
  for (uint32_t twin : map_.twins(rank())) pieces.push_back(place_of(twin));
  return run([&](Collective::Then then) { ranks_.passes().gather(pieces, std::move(then)); });
}

void RankedEngine::take_gradient(uint32_t unit, uint64_t first, uint64_t count, std::byte* target,
                                 std::span<double> squares) {
  const Dtype dtype = model().form.gradient;
  const uint64_t bytes = bytes_of(dtype);
  std::memcpy(target, memory(added_at_[*shards_.model_unit[unit]] + first * bytes), count * bytes);
  kernels_.square_sums(dtype, target, count, squares);
}

Result<double> RankedEngine::sum_of_squares(const std::vector<std::vector<double>>& blocks) {
  has_asked_all_ = true;
  auto* const all = reinterpret_cast<double*>(memory(squares_at_));
  std::vector<Collective::Shard> shards;
  for (uint32_t unit = 0; unit < model().units.size(); ++unit) {
    if (!model().units[unit].trainable) continue;
    auto first_of = [&](uint32_t other) { return first_block_[unit] + map_.shard(unit, other).begin / kBlockElements; };
    if (const std::optional<uint32_t> here = shards_.unit_here[unit]) {
      std::copy(blocks[*here].begin(), blocks[*here].end(), all + first_of(rank()));
    }
    for (uint32_t member : map_.group(rank())) {
      const uint64_t count = ceil_div(map_.shard(unit, member).elements(), kBlockElements);
      shards.push_back({member, squares_at_ + first_of(member) * sizeof(double), count * sizeof(double)});
    }
  }
  if (map_.group_ranks() > 1) {
    PENSTOCK_TRY(run([&](Collective::Then then) { ranks_.passes().gather(shards, std::move(then)); }));
  }
  double sum = 0;
  for (uint32_t unit = 0; unit < model().units.size(); ++unit) {
    if (!model().units[unit].trainable) continue;
    const uint64_t count = ceil_div(model().units[unit].elements, kBlockElements);
    for (uint64_t block = 0; block < count; ++block) sum += all[first_block_[unit] + block];
  }
  return sum;
}

Result<StepReport> RankedEngine::step(std::string trainer_state) {
  Result<StepReport> report = here_->step(std::move(trainer_state));
  if (!report.ok()) {
    // The others have gone on to the verdict.
    if (has_asked_all_ && ranks_.status().ok()) ranks_.fail(report.status());
    PENSTOCK_TRY(passed_on(report.status()));
  }
  in_step_ = false;
  return report;
}

Status RankedEngine::discard() {
  PENSTOCK_TRY(passed_on(here_->discard()));
  in_step_ = false;
  return Status();
}

Status RankedEngine::read_shard(uint32_t unit, Role role, std::span<std::byte> values) {
  const std::optional<uint32_t> here = unit < shards_.unit_here.size() ? shards_.unit_here[unit] : std::nullopt;
  if (here) return passed_on(here_->read(*here, role, 0, values));
  return values.empty() ? Status() : Status(Code::kUsage, text("read: rank ", rank(), " has nothing of unit ", unit));
}

std::string RankedEngine::description() const {
  auto line = [](const char* name, uint64_t bytes) { return text("  host  ", name, "  ", bytes_text(bytes), "\n"); };
  return text("  rank ", ranks_.rank(), " of ", ranks_.ranks(), ", in groups of ", map_.group_ranks(), "\n",
              line("gathered weights", taken_.gathered_bytes), line("gradients given", taken_.given_bytes),
              line("gradients added up", taken_.added_bytes), line("norm blocks", taken_.squares_bytes),
              line("sums of this rank", taken_.sums_bytes), here_->description());
}

}  // namespace penstock::engine
