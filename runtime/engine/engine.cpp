#include "runtime/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/engine/engine_core.h"
#include "runtime/engine/root_state.h"

namespace penstock::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kPlacesAtOnce = 4;

double seconds_since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

// Stochastic rounding counts elements from a unit's first, so each unit draws under a seed of its own.
uint64_t seed_of(uint64_t seed, uint32_t unit) { return (seed ^ unit) * 0x9e3779b97f4a7c15u + unit; }

// What a verb has left half done must neither be trained on nor become durable with a later step.
Status fail_if_half_done(EngineCore& core, const Status& status) {
  if (!status.ok()) core.executor().fail(status);
  return status;
}

const char* name_of(Direction direction) { return direction == Direction::forward ? "forward" : "backward"; }

}  // namespace

Engine::Engine(EngineOptions options) : options_(std::move(options)) {}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  auto engine = std::unique_ptr<Engine>(new Engine(options));
  PENSTOCK_TRY(engine->start());
  return engine;
}

Status Engine::start() {
  Answer<Status> opened;
  auto made = DecisionThread::make([this, &opened](DecisionThread& thread) {
    Result<std::unique_ptr<EngineCore>> core = EngineCore::open(options_, thread.mailbox());
    if (core.ok()) core_ = std::move(*core);
    const bool runs = core.ok();
    opened.give(core.status());
    while (runs && !thread.stopping()) core_->executor().turn(std::chrono::milliseconds(100));
    core_.reset();
  });
  PENSTOCK_TRY(made.status());
  thread_ = std::move(*made);
  PENSTOCK_TRY(opened.wait());

  RootPayload payload = thread_->ask([this] { return core_->store().payload(); });
  PENSTOCK_TRY_ASSIGN(restored, parse_engine_state(payload));
  slots_ = thread_->ask([this] { return core_->store().layout().slots(); });
  state_capacity_ = thread_->ask([this] { return core_->store().state_capacity(); });
  steps_done_ = payload.step;
  updates_done_ = restored.updates;
  restored_ = std::move(payload.trainer_state);
  plan_ = std::make_unique<Plan>(core_->plan());
  intake_ = std::make_unique<GradientIntake>(options_.request.workload, plan_->sums, core_->memory().sums(),
                                             core_->workers());
  for (const Unit& unit : options_.request.workload.units)
    squares_.emplace_back(ceil_div(unit.elements, kBlockElements));
  predicted_s_ = core_->predicted_step_s();
  return Status();
}

Engine::~Engine() {
  if (thread_ && in_step_) (void)discard();
  if (thread_ && plan_) (void)settle();
  thread_.reset();
}

std::string Engine::description() const {
  return thread_->ask([this] { return core_->description(); });
}

std::vector<std::string> Engine::remarks() const {
  return thread_->ask([this] { return core_->store().open_report().notes; });
}

// Runs `then` on the decision thread once `ready` holds, and books the time as stalls of the lanes waited for.
template <typename Function>
Status Engine::wait_for(std::function<bool(EngineCore&)> ready, Function then) {
  Answer<Status> answer;
  Executor::LaneSeconds before{}, after{};
  const Clock::time_point asked = Clock::now();
  thread_->mailbox().post([&] {
    Executor& executor = core_->executor();
    before = executor.waited_s();
    executor.when([&] { return ready(*core_); },
                  [&](Status status) {
                    if (status.ok()) status = then(*core_);
                    after = core_->executor().waited_s();
                    answer.give(status);
                  });
  });
  Status status = answer.wait();
  double waited = seconds_since(asked), accounted = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) accounted += after[lane] - before[lane];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    double share = accounted > 0 ? (after[lane] - before[lane]) / accounted : (lane + 1 == kLanes ? 1.0 : 0.0);
    report_.stall_s[lane] += waited * share;
  }
  if (!status.ok()) in_step_ = false;  // there is nothing left to end or to discard
  return status;
}

Status Engine::expect_in_step(bool in_step, const char* verb) {
  if (in_step_ == in_step) return Status();
  Status failed = thread_->ask([this] { return core_->executor().status(); });
  if (!failed.ok()) return failed;
  return in_step ? Status(Code::kUsage, text(verb, ": called outside a step"), "call begin() first")
                 : Status(Code::kUsage, text(verb, ": called inside a step"), "end it with step() or discard() first");
}

Status Engine::begin(const StepBegin& begin) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(false, "begin"));
  const Workload& workload = options_.request.workload;
  if (begin.micro_batches == 0 || begin.micro_batches > workload.micro_batches) {
    return Status(Code::kUsage,
                  text("begin: ", begin.micro_batches, " micro-batches, planned for ", workload.micro_batches));
  }
  PENSTOCK_TRY(check_groups(begin.groups));
  if (!(begin.loss_scale > 0) || !std::isnormal(static_cast<float>(1 / begin.loss_scale))) {
    return Status(Code::kUsage, text("begin: a loss scale of ", begin.loss_scale),
                  "a number above 0 whose inverse is a float, and neither infinite nor almost 0");
  }
  began_ = Clock::now();
  report_ = StepReport();
  StepSetup setup;
  setup.inverse_loss_scale = 1 / begin.loss_scale;
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) setup.numbers.push_back(numbers_of(begin, unit));
  const Clipping& clipping = workload.clipping;
  if (clipping.norm > 0) {
    // The least sum of squares that is certain to clip; the last digits of the norm depend on the order of adding.
    double norm = std::max(0.0, clipping.norm - 1e-6) * begin.loss_scale;
    setup.certain_strike = norm * norm * (1 + 1e-9);
  }
  setup.skips_overflow = clipping.skips_overflow;
  const bool durable = plan_->durability.durable_after(steps_done_ + 1);
  setup.choices.durable = durable;
  setup.choices.micro_batches = begin.micro_batches;
  begin_ = begin;
  completed_.clear();
  has_acquired_ = false;
  next_compute_ = 0;
  skip_left_out_computes();
  intake_->begin(begin.micro_batches);
  Status status = wait_for([](EngineCore& core) { return core.executor().can_begin(); },
                           [&](EngineCore& core) {
                             setup.round = core.executor().next_round();
                             const bool each_is_durable = plan_->durability.kind == Durability::Kind::step;
                             setup.choices.may_be_discarded = slots_ > 2 || (slots_ == 2 && each_is_durable);
                             setup.choices.speculate = setup.choices.may_be_discarded && speculation_.speculate();
                             core.executor().begin(setup);
                             return Status();
                           });
  in_step_ = status.ok();
  left_ = Clock::now();
  return status;
}

Status Engine::check_groups(const std::vector<Hyper>& groups) const {
  const Workload& workload = options_.request.workload;
  for (size_t group = 0; group < groups.size(); ++group) {
    PENSTOCK_TRY(validate(workload.form.optimizer, groups[group]).within(text("begin: group ", group)));
  }
  auto refuse = [&](const std::string& who, uint32_t group) {
    return Status(Code::kUsage, text("begin: ", who, " is in group ", group, " of ", groups.size()),
                  "give the hyper-parameters of every group that units and parameters name");
  };
  for (const Unit& unit : workload.units) {
    for (const Parameter& parameter : unit.parameters) {
      const uint32_t group = parameter.group.value_or(unit.group);
      if (group >= groups.size()) return refuse(text("parameter ", parameter.name, " of unit ", unit.name), group);
    }
    if (unit.group >= groups.size()) return refuse(text("unit ", unit.name), unit.group);
  }
  return Status();
}

UnitNumbers Engine::numbers_of(const StepBegin& begin, uint32_t unit) const {
  const StateForm& form = options_.request.workload.form;
  StepNumbers numbers;
  numbers.gradient_scale = static_cast<float>(1 / begin.loss_scale);
  numbers.seed = seed_of(options_.seed, unit);
  numbers.step = updates_done_ + 1;
  UnitNumbers runs;
  for (const GroupRun& run : group_runs(options_.request.workload.units[unit], form)) {
    numbers.coefficients = make_coefficients(form.optimizer, begin.groups[run.group], numbers.step);
    runs.push_back({numbers, run.end_element});
  }
  return runs;
}

// -- passes -----------------------------------------------------------------------------------------------------------

// A step of fewer micro-batches than planned has the plan's last ones.
void Engine::skip_left_out_computes() {
  const uint32_t left_out = plan_->micro_batches - begin_.micro_batches;
  const std::vector<Compute>& computes = plan_->computes;
  while (next_compute_ < computes.size() && computes[next_compute_].micro_batch < left_out) ++next_compute_;
}

ComputePass Engine::pass_of(const Compute& compute) const {
  return {compute.direction, compute.use, compute.micro_batch - (plan_->micro_batches - begin_.micro_batches)};
}

std::vector<ComputePass> Engine::passes() const {
  std::vector<ComputePass> all;
  const uint32_t left_out = plan_->micro_batches - std::min(plan_->micro_batches, begin_.micro_batches);
  for (const Compute& compute : plan_->computes) {
    if (compute.micro_batch >= left_out) all.push_back(pass_of(compute));
  }
  return all;
}

std::string Engine::words_of(const ComputePass& pass) const {
  const std::vector<Use>& uses = options_.request.workload.uses;
  return text(name_of(pass.direction), " of use ", pass.use < uses.size() ? uses[pass.use].name : text(pass.use),
              ", micro-batch ", pass.micro_batch);
}

Status Engine::expect_pass(const ComputePass& pass, const char* verb) const {
  if (next_compute_ == plan_->computes.size()) {
    return Status(Code::kUsage, text(verb, ": ", words_of(pass), ": the step has no further pass"));
  }
  const ComputePass next = pass_of(plan_->computes[next_compute_]);
  if (next == pass) return Status();
  return Status(Code::kUsage, text(verb, ": ", words_of(pass), ": expected ", words_of(next)),
                "follow Engine::passes(), or plan with the micro-batch group that the trainer has");
}

Result<std::vector<UnitWeights>> Engine::acquire(const ComputePass& pass) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(true, "acquire"));
  PENSTOCK_TRY(expect_pass(pass, "acquire"));
  if (has_acquired_) return Status(Code::kUsage, "acquire: the pass before has not been released");
  report_.trainer_s += seconds_since(left_);
  const Compute& compute = plan_->computes[next_compute_];
  std::vector<UnitWeights> weights;
  PENSTOCK_TRY(wait_for([&](EngineCore& core) { return core.executor().is_granted(compute.move); },
                        [&](EngineCore& core) {
                          const auto views = core.executor().weights_of(compute);
                          for (size_t i = 0; i < views.size(); ++i) {
                            weights.push_back({compute.weights[i].unit, 0, views[i]});
                          }
                          return Status();
                        }));
  const Workload& workload = options_.request.workload;
  for (UnitWeights& of : weights) {
    of.elements = workload.units[of.unit].elements;
    of.bytes = of.bytes.first(of.elements * bytes_of(workload.form.weight));
  }
  has_acquired_ = true;
  left_ = Clock::now();
  return weights;
}

Status Engine::release(const ComputePass& pass) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(true, "release"));
  PENSTOCK_TRY(expect_pass(pass, "release"));
  if (!has_acquired_) return Status(Code::kUsage, "release: the pass was not acquired");
  has_acquired_ = false;
  thread_->mailbox().post([this, move = plan_->computes[next_compute_].move] {
    if (core_->executor().is_granted(move)) core_->executor().end_compute(move);
  });
  ++next_compute_;
  skip_left_out_computes();
  if (pass.direction == Direction::forward) return Status();
  return as_intake([&] {
    const std::vector<uint32_t> complete = intake_->end_pass(pass.use, pass.micro_batch);
    completed_.insert(completed_.end(), complete.begin(), complete.end());
    return hand_over_completed();
  });
}

// -- gradients --------------------------------------------------------------------------------------------------------

Status Engine::gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(true, "gradient"));
  const std::vector<uint32_t> uses = part.unit < options_.request.workload.units.size()
                                         ? uses_of(options_.request.workload, part.unit)
                                         : std::vector<uint32_t>{0};
  if (!part.use && uses.size() != 1) {
    return Status(Code::kUsage, text("gradient: unit ", part.unit, ": ", uses.size(), " uses have it"),
                  "say of which use the gradient is");
  }
  if (options_.request.workload.pass == Pass::training) PENSTOCK_TRY(expect_backward(part));
  return as_intake([&] {
    const GradientIntake::Values given{dtype, values};
    PENSTOCK_TRY_ASSIGN(
        taken,
        intake_->take({part.unit, part.use.value_or(uses.front()), part.micro_batch, part.first_element}, given));
    if (taken == GradientIntake::Taken::completes_with) {
      PENSTOCK_TRY(hand_over(part.unit, [&](const Tile& tile, std::byte* place, std::span<double> squares) {
        intake_->finish(part.unit, given, tile.first_element, tile.elements, place, squares);
      }));
      intake_->finished(part.unit);
      return Status();
    }
    if (taken == GradientIntake::Taken::completes) completed_.push_back(part.unit);
    // Within a pass the plan does not expect it yet.
    return has_acquired_ ? Status() : hand_over_completed();
  });
}

Status Engine::expect_backward(const GradientPart& part) const {
  if (has_acquired_) {
    const ComputePass held = pass_of(plan_->computes[next_compute_]);
    const bool is_its = held.direction == Direction::backward && part.micro_batch == held.micro_batch &&
                        part.use.value_or(held.use) == held.use;
    if (is_its) return Status();
  }
  return Status(
      Code::kUsage,
      text("gradient: unit ", part.unit, ", micro-batch ", part.micro_batch, ": its backward pass is not acquired"),
      "give gradients between acquire() and release() of their backward pass");
}

Status Engine::hand_over_completed() {
  for (uint32_t unit : std::exchange(completed_, {})) {
    PENSTOCK_TRY(hand_over(unit, [&](const Tile& tile, std::byte* place, std::span<double> squares) {
      intake_->finish(unit, {}, tile.first_element, tile.elements, place, squares);
    }));
    intake_->finished(unit);
  }
  return Status();
}

// What does not wait for a lane is booked as intake.
template <typename Function>
Status Engine::as_intake(Function work) {
  auto stalled = [&] { return std::accumulate(report_.stall_s.begin(), report_.stall_s.end(), 0.0); };
  report_.trainer_s += seconds_since(left_);
  const Clock::time_point start = Clock::now();
  const double stalled_before = stalled();
  const Status status = work();
  report_.intake_s += seconds_since(start) - (stalled() - stalled_before);
  left_ = Clock::now();
  return status;
}

// Places are asked for together, as far as they are free: each question is two switches of threads.
Status Engine::take_places(TileId tile, std::deque<Lease>& places) {
  const TileId end = std::min(tile + kPlacesAtOnce, plan_->tiles.first_of(plan_->tiles[tile].unit + 1));
  return wait_for(
      [&places, next = tile, end](EngineCore& core) mutable {
        for (; next < end; ++next) {
          std::optional<Lease> place = core.executor().try_take_gradient(next);
          if (!place) break;
          places.push_back(std::move(*place));
        }
        return !places.empty();
      },
      [](EngineCore&) { return Status(); });
}

Status Engine::hand_over(uint32_t unit, const FillGradient& fill) {
  std::deque<Lease> places;  // of this tile and those that follow
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
    const Tile& shape = plan_->tiles[tile];
    if (places.empty()) {
      if (Status taken = take_places(tile, places); !taken.ok()) {
        // Leases end where they began.
        thread_->ask([&] {
          places.clear();
          return true;
        });
        return taken;
      }
    }
    auto place = std::make_shared<Lease>(std::move(places.front()));
    places.pop_front();
    const uint64_t first_block = shape.first_element / kBlockElements;
    std::span<double> squares(squares_[unit].data() + first_block, ceil_div(shape.elements, kBlockElements));
    fill(shape, place->data(), squares);
    thread_->mailbox().post([this, tile, squares, place = std::move(place)] {
      core_->executor().gradient_complete(tile, std::move(*place), squares);
    });
  }
  return Status();
}

Status Engine::absent_gradient(uint32_t unit, Absent absent) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(true, "absent_gradient"));
  const std::vector<Unit>& units = options_.request.workload.units;
  auto refuse = [](const std::string& why) { return Status(Code::kUsage, "absent gradient: unit " + why); };
  if (unit >= units.size()) return refuse(text(unit, " of ", units.size()));
  const Unit& shape = units[unit];
  if (!shape.trainable) return refuse(shape.name + " is frozen");
  if (std::string why = intake_->why_not_absent(unit); !why.empty()) return refuse(shape.name + why);
  intake_->give_up(unit);
  if (absent == Absent::zero) {
    return as_intake([&] {
      return hand_over(unit, [](const Tile& tile, std::byte* place, std::span<double> squares) {
        std::memset(place, 0, tile.gradient_bytes);
        std::fill(squares.begin(), squares.end(), 0.0);
      });
    });
  }
  std::fill(squares_[unit].begin(), squares_[unit].end(), 0.0);
  return as_intake([&] {
    return thread_->ask([&] {
      for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
        if (core_->executor().status().ok()) core_->executor().gradient_absent(tile);
      }
      return core_->executor().status();
    });
  });
}

Result<StepReport> Engine::step(std::string trainer_state) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(true, "step"));
  report_.trainer_s += seconds_since(left_);
  left_ = Clock::now();
  const Workload& workload = options_.request.workload;
  if (next_compute_ < plan_->computes.size()) {
    return Status(Code::kUsage,
                  text("step: expected ", words_of(pass_of(plan_->computes[next_compute_])), " before it"));
  }
  double squares = 0;
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    if (!workload.units[unit].trainable) continue;
    if (!intake_->complete(unit)) {
      PENSTOCK_TRY(thread_->ask([this] { return core_->executor().status(); }));
      return Status(Code::kUsage, text("step: unit ", workload.units[unit].name, " has no complete gradient"),
                    "hand over every micro-batch, or declare the gradient absent");
    }
    for (double block : squares_[unit]) squares += block;
  }
  report_.gradient_norm = std::sqrt(squares) / begin_.loss_scale;
  const Clipping& clipping = workload.clipping;
  double factor = clipping.norm > 0 ? clipping.norm / (report_.gradient_norm + 1e-6) : 1;
  report_.verdict = Verdict::confirm;
  // A norm that is no number clips nothing; but what had come before may have stopped speculation, which only a strike
  // ends, be it one by 1.
  if (clipping.norm > 0 && !(factor >= 1)) report_.verdict = Verdict::strike;
  if (clipping.skips_overflow && !std::isfinite(squares)) report_.verdict = Verdict::skip;
  report_.clip_factor = report_.verdict == Verdict::strike && !std::isnan(factor) ? factor : 1;

  const uint64_t updates = updates_done_ + (report_.verdict != Verdict::skip);
  RootPayload payload{.step = steps_done_ + 1,
                      .loss_scale = begin_.loss_scale,
                      .config_hash = options_.config_hash,
                      .engine_state = encode({.updates = updates}),
                      .trainer_state = std::move(trainer_state)};
  PENSTOCK_TRY(payload.validate(state_capacity_).within("step"));
  Moved moved;
  PENSTOCK_TRY(wait_for([](EngineCore& core) { return core.executor().gradients_complete(); },
                        [&](EngineCore& core) {
                          core.executor().give_verdict(report_.verdict, report_.clip_factor, std::move(payload));
                          moved = core.moved();
                          return core.executor().status();
                        }));
  in_step_ = false;
  speculation_.learn(report_.verdict == Verdict::strike);
  updates_done_ = updates;
  report_.step = ++steps_done_;
  const Moved since = moved - reported_;
  report_.read_bytes = since.read_bytes;
  report_.written_bytes = since.written_bytes;
  reported_ = moved;
  report_.predicted_s = predicted_s_;
  report_.wall_s = seconds_since(began_);
  return report_;
}

Status Engine::discard() {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(true, "discard"));
  return discard_step();
}

Status Engine::discard_step() {
  in_step_ = has_acquired_ = false;
  const bool one_slot = !survives_crashes();
  if (!plan_->clipping && (one_slot || plan_->durability.kind != Durability::Kind::step)) {
    return thread_->ask([this, one_slot] {
      core_->executor().fail(Status(
          Code::kEnvironment,
          text("discard: without clipping and ", one_slot ? "with one slot a tile" : "without a root after every step",
               ", updates overwrite what was before them"),
          "open the store again: it goes on from the last durable step"));
      return core_->executor().status();
    });
  }
  PENSTOCK_TRY(wait_for([](EngineCore&) { return true; },
                        [](EngineCore& core) {
                          core.executor().abandon();
                          return Status();
                        }));
  // With clipping nothing that rests in host memory was updated yet, but for weights whose update was speculative.
  auto which = plan_->clipping ? EngineCore::Resting::weights_of_others : EngineCore::Resting::all;
  return wait_for([](EngineCore& core) { return core.executor().idle(); },
                  [&](EngineCore& core) {
                    if (!plan_->clipping) core.executor().forget_unwritten();
                    return fail_if_half_done(core, core.load_resting(which));
                  });
}

Status Engine::settle() {
  std::lock_guard lock(verbs_);
  return settle_steps();
}

Status Engine::settle_steps() {
  PENSTOCK_TRY(expect_in_step(false, "settle"));
  const bool last_is_durable = steps_done_ == 0 || plan_->durability.durable_after(steps_done_);
  return wait_for([](EngineCore& core) { return core.executor().idle(); },
                  [&](EngineCore& core) {
                    PENSTOCK_TRY(core.executor().status());
                    if (last_is_durable || core.store().payload().step == steps_done_) return Status();
                    PENSTOCK_TRY(fail_if_half_done(core, core.commit_resting(core.executor().last_payload())));
                    core.executor().forget_unwritten();
                    return Status();
                  });
}

Moved Engine::moved() const {
  return thread_->ask([this] { return core_->moved(); });
}

Status Engine::check_run(const char* verb, uint32_t unit, Role role, uint64_t first, uint64_t length_bytes) const {
  const Workload& workload = options_.request.workload;
  auto refuse = [&](const std::string& why) { return Status(Code::kUsage, text(verb, ": ", why)); };
  if (unit >= workload.units.size()) return refuse(text("unit ", unit, " of ", workload.units.size()));
  const Unit& shape = workload.units[unit];
  std::optional<Plane> plane;
  if (role == Role::weight) plane = Plane{role, workload.form.weight};
  for (const Plane& resting : resting_planes(workload.form)) {
    if (resting.role == role && shape.trainable) plane = resting;
  }
  if (!plane) return refuse(text("unit ", shape.name, " has no ", name_of(role)));
  const uint64_t size = bytes_of(plane->dtype), there = plane->values(shape.elements);
  if (length_bytes % size != 0 || first > there || length_bytes / size > there - first) {
    return refuse(text(length_bytes, " B of ", name_of(plane->dtype), " from ", name_of(role), " ", first, " of unit ",
                       shape.name, ", which has ", there));
  }
  return Status();
}

Status Engine::read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(false, "read"));
  PENSTOCK_TRY(check_run("read", unit, role, first, values.size()));
  return wait_for([](EngineCore& core) { return core.executor().idle(); },
                  [&](EngineCore& core) { return core.read_plane(unit, role, first, values); });
}

Status Engine::write(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect_in_step(false, "write"));
  PENSTOCK_TRY(check_run("write", unit, role, first, values.size()));
  if (!options_.request.workload.units[unit].trainable) {
    return Status(Code::kUsage, text("write: unit ", options_.request.workload.units[unit].name, " is frozen"));
  }
  PENSTOCK_TRY(settle_steps());
  return wait_for([](EngineCore& core) { return core.executor().idle(); },
                  [&](EngineCore& core) {
                    return fail_if_half_done(core, core.write_plane(unit, role, first, values, core.store().payload()));
                  });
}

}  // namespace penstock::engine
