#include "runtime/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "cpu_optim/scheduler.h"
#include "runtime/engine/engine_waits.h"
#include "runtime/engine/plan_change.h"
#include "runtime/engine/rank_side.h"
#include "runtime/engine/root_state.h"

namespace penstock::engine {
namespace {

// New plans after which the engine becomes no more patient with rates: a thousand times as many steps.
constexpr uint64_t kPatienceMost = 10;

// Stochastic rounding counts elements from a unit's first, so each unit draws under a seed of its own.
uint64_t seed_of(uint64_t seed, uint32_t unit) { return (seed ^ unit) * 0x9e3779b97f4a7c15u + unit; }

}  // namespace

Engine::Engine(EngineOptions options) : options_(std::move(options)) {
  if (options_.on_updated) options_.request = with_updates_told(std::move(options_.request));
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  if (options.on_updated && options.request.workload.clipping.may_take_back()) {
    return Status(Code::kUsage, "engine: on_updated with clipping, which may take updates back",
                  "read the weights after the step instead");
  }
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
    while (runs && !thread.stopping()) core_->turn(std::chrono::milliseconds(100));
    core_.reset();
  });
  PENSTOCK_TRY(made.status());
  thread_ = std::move(*made);
  PENSTOCK_TRY(opened.wait());

  RootPayload payload = thread_->ask([this] { return core_->store().payload(); });
  PENSTOCK_TRY_ASSIGN(restored, parse_engine_state(payload, options_.request.workload));
  slots_ = thread_->ask([this] { return core_->store().layout().slots(); });
  state_capacity_ = thread_->ask([this] { return core_->store().state_capacity(); });
  steps_done_ = payload.step;
  state_ = std::move(restored);
  store_id_ = thread_->ask([this] { return core_->store().id(); });
  restored_ = std::move(payload.trainer_state);
  take_up_plan();
  for (const Unit& unit : options_.request.workload.units) {
    squares_.emplace_back(ceil_div(unit.elements, kBlockElements));
    skipped_.push_back({.whole = false, .parameters = std::vector<bool>(unit.parameters.size())});
  }
  return Status();
}

void Engine::take_up_plan() {
  plan_ = std::make_unique<Plan>(core_->plan());
  intake_ = std::make_unique<GradientIntake>(options_.request.workload, plan_->sums, core_->memory().sums(),
                                             core_->workers());
  if (DeviceMemory* device = core_->device()) {
    device_sums_ = std::make_unique<DeviceSums>(options_.request.workload, *plan_, *device);
    downloaded_intake_ = std::move(intake_);
    intake_ = std::make_unique<GradientIntake>(options_.request.workload, *device_sums_, core_->workers());
  }
  prediction_.reset(core_->predicted_step_s());
  if (options_.request.workload.clipping.norm > 0) {
    // Now: between steps there may be no memory to play a plan through.
    for (bool speculated : {true, false}) predicted_s(Verdict::strike, speculated);
  }
  drives_load_ = DrivesUnderLoad();
  looking_for_plan_ = {};  // of another plan
  rate_watch_.reset();
  if (!options_.new_plan_rule || options_.has_other_ranks()) return;
  NewPlanRule rule = *options_.new_plan_rule;
  rule.steps <<= std::min<uint64_t>(plans_found_, kPatienceMost);
  rate_watch_.emplace(rule);
}

double Engine::predicted_s(Verdict verdict, bool speculated) {
  return prediction_.of(verdict, speculated, options_.request.machine, [this]() -> const Plan& { return *plan_; });
}

Engine::~Engine() {
  if (looking_for_plan_.valid()) looking_for_plan_.wait();
  if (thread_ && now_ == Now::in_forward) (void)end_forward();
  if (thread_ && now_ == Now::in_step) (void)discard();
  if (thread_ && plan_) (void)settle();
  if (thread_) give_up_arriving();  // after a failure
  thread_.reset();
  const cpu_optim::Scheduler of_this_thread;  // which has given workers its gradients
}

std::string Engine::description() const {
  return thread_->ask([this] { return core_->description(); });
}

std::vector<std::string> Engine::remarks() const {
  return thread_->ask([this] { return core_->store().open_report().notes; });
}

Status Engine::expect(Now now, const char* verb) {
  if (now_ == now) return Status();
  PENSTOCK_TRY(thread_->ask([this] { return core_->executor().status(); }));
  if (now_ == Now::in_step) {
    return Status(Code::kUsage, text(verb, ": called inside a step"), "end it with step() or discard() first");
  }
  if (now_ == Now::in_forward) {
    return Status(Code::kUsage, text(verb, ": called between begin_forward() and end_forward()"),
                  "end the forward passes with end_forward() first");
  }
  return now == Now::in_step
             ? Status(Code::kUsage, text(verb, ": called outside a step"), "call begin() first")
             : Status(Code::kUsage, text(verb, ": called outside of forward passes"), "call begin_forward() first");
}

Status Engine::begin(const StepBegin& begin) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "begin"));
  if (in_writes_) return Status(Code::kUsage, "begin: writes have begun", "end them with end_writes() first");
  PENSTOCK_TRY(take_found_plan());
  const Workload& workload = options_.request.workload;
  if (begin.micro_batches == 0 || begin.micro_batches > workload.micro_batches) {
    return Status(Code::kUsage,
                  text("begin: ", begin.micro_batches, " micro-batches, planned for ", workload.micro_batches));
  }
  PENSTOCK_TRY(check_groups(begin.groups));
  if (!(begin.loss_scale > 0) || !std::isnormal(static_cast<float>(1 / begin.loss_scale))) {
    return Status(
        Code::kUsage,
        text("begin: loss scale ", begin.loss_scale, ": a positive number with a normal fp32 inverse expected"),
        "a power of two from 2^-127 to 2^126");
  }
  began_ = Clock::now();
  report_ = StepReport();
  for (Skipped& unit : skipped_) {
    unit.whole = false;
    std::fill(unit.parameters.begin(), unit.parameters.end(), false);
  }
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
  squares_of_all_.reset();
  put_.clear();
  has_acquired_ = updates_ = false;
  next_compute_ = 0;
  skip_left_out_computes();
  intake_->begin(begin.micro_batches);
  // What a device has added up over all micro-batches is one contribution.
  if (downloaded_intake_) downloaded_intake_->begin(is_vertical(*plan_) ? 1 : begin.micro_batches);
  Status status = wait_for([](EngineCore& core) { return core.executor().can_begin(); },
                           [&](EngineCore& core) {
                             setup.number = core.executor().next_number();
                             const bool each_is_durable = plan_->durability.kind == Durability::Kind::step;
                             setup.choices.may_be_discarded = slots_ > 2 || (slots_ == 2 && each_is_durable);
                             setup.choices.speculate = setup.choices.may_be_discarded && speculation_.speculate();
                             speculates_ = setup.choices.speculate;
                             core.executor().begin(setup);
                             return Status();
                           });
  if (status.ok()) now_ = Now::in_step;
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
  const RankSide::Origin origin =
      options_.has_other_ranks() ? options_.ranks->origin_of(unit) : RankSide::Origin{unit, 0};
  numbers.seed = seed_of(options_.seed, origin.unit);
  numbers.step = state_.updates + 1;
  const UnitCounts& counts = state_.counts[unit];
  struct Kind {
    uint32_t group;
    uint64_t count;
    bool untouched;

    bool operator==(const Kind&) const = default;
  };
  std::optional<Kind> last;
  UnitNumbers runs;
  for (const ParameterRun& run : parameter_runs(options_.request.workload.units[unit], form)) {
    const uint64_t count = run.parameter ? counts.parameters[*run.parameter] : counts.unnamed;
    const Kind kind{run.group, count, is_untouched(unit, run)};
    if (last == kind) runs.pop_back();
    if (!last || last->group != kind.group || last->count != kind.count) {
      numbers.coefficients = make_coefficients(form.optimizer, begin.groups[run.group], count + 1);
    }
    last = kind;
    runs.push_back({numbers, origin.first_element + run.end_element, kind.untouched});
  }
  return runs;
}

bool Engine::is_untouched(uint32_t unit, const ParameterRun& run) const {
  const Skipped& skipped = skipped_[unit];
  return skipped.whole || (run.parameter && skipped.parameters[*run.parameter]);
}

void Engine::count_updates() {
  ++state_.updates;
  for (size_t unit = 0; unit < skipped_.size(); ++unit) {
    if (skipped_[unit].whole) continue;
    UnitCounts& counts = state_.counts[unit];
    ++counts.unnamed;
    for (size_t i = 0; i < counts.parameters.size(); ++i) counts.parameters[i] += !skipped_[unit].parameters[i];
  }
}

// What step() and gradient_norm() wait for.
Status Engine::measure_gradients(const char* verb) {
  PENSTOCK_TRY(expect(Now::in_step, verb));
  report_.trainer_s += seconds_since(left_);
  left_ = Clock::now();
  if (squares_of_all_) return Status();
  const Workload& workload = options_.request.workload;
  if (next_compute_ < plan_->computes.size()) {
    return Status(Code::kUsage,
                  text(verb, ": expected ", words_of(pass_of(plan_->computes[next_compute_])), " before it"));
  }
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    if (!workload.units[unit].trainable || intake_->complete(unit)) continue;
    PENSTOCK_TRY(thread_->ask([this] { return core_->executor().status(); }));
    return Status(Code::kUsage, text(verb, ": unit ", workload.units[unit].name, " has no complete gradient"),
                  "hand over every micro-batch, or declare the gradient absent");
  }
  // What is downloaded of a unit that was declared absent is taken in too, and left.
  PENSTOCK_TRY(wait_taking_in(
      [](EngineCore& core) { return core.executor().gradients_complete() && core.executor().has_ended_downloads(); },
      [](EngineCore&) { return Status(); }));
  double squares = 0;
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    if (!workload.units[unit].trainable) continue;
    for (double block : squares_[unit]) squares += block;
  }
  if (options_.has_other_ranks()) {
    PENSTOCK_TRY_ASSIGN(of_all, options_.ranks->sum_of_squares(squares_));
    squares = of_all;
  }
  squares_of_all_ = squares;
  report_.gradient_norm = std::sqrt(squares) / begin_.loss_scale;
  left_ = Clock::now();
  return Status();
}

Result<double> Engine::gradient_norm() {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(measure_gradients("gradient_norm"));
  return report_.gradient_norm;
}

Result<StepReport> Engine::step(std::string trainer_state) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(measure_gradients("step"));
  const Clipping& clipping = options_.request.workload.clipping;
  double factor = clipping.norm > 0 ? clipping.norm / (report_.gradient_norm + 1e-6) : 1;
  report_.verdict = Verdict::confirm;
  // A norm that is not a number makes the factor none, and with it every weight, as with torch.
  if (clipping.norm > 0 && !(factor >= 1)) report_.verdict = Verdict::strike;
  if (clipping.skips_overflow && !std::isfinite(*squares_of_all_)) report_.verdict = Verdict::skip;
  report_.clip_factor = report_.verdict == Verdict::strike ? factor : 1;

  EngineState before = state_;
  if (report_.verdict != Verdict::skip) count_updates();
  state_.course = course_after(state_.course, *squares_of_all_, begin_.loss_scale, begin_.groups);
  RootPayload payload{.step = steps_done_ + 1,
                      .loss_scale = begin_.loss_scale,
                      .config_hash = options_.config_hash,
                      .engine_state = encode(state_),
                      .trainer_state = std::move(trainer_state)};
  if (Status fits = payload.validate(state_capacity_).within("step"); !fits.ok()) {
    state_ = std::move(before);
    return fits;
  }
  DriveBytes moved;
  std::array<double, kLanes> busy_s{};
  DrivesUnderLoad load;
  PENSTOCK_TRY(wait_for([](EngineCore&) { return true; },
                        [&](EngineCore& core) {
                          core.executor().give_verdict(report_.verdict, report_.clip_factor, std::move(payload));
                          moved = core.drive_bytes();
                          busy_s = core.busy_s();
                          load = core.executor().drives_load();
                          return core.executor().status();
                        }));
  now_ = Now::between_steps;
  speculation_.learn(report_.verdict == Verdict::strike);
  report_.step = ++steps_done_;
  const DriveBytes since = moved - reported_;
  report_.read_bytes = since.read_bytes;
  report_.written_bytes = since.written_bytes;
  reported_ = moved;
  for (size_t lane = 0; lane < kLanes; ++lane) report_.busy_s[lane] = busy_s[lane] - reported_busy_s_[lane];
  reported_busy_s_ = busy_s;
  report_.predicted_s = predicted_s(report_.verdict, speculates_);
  report_.new_plans = new_plans_;
  watch_rates(load);
  report_.wall_s = seconds_since(began_);
  return report_;
}

Status Engine::discard() {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "discard"));
  return discard_step();
}

Status Engine::give_up(const Status& why) {
  (void)discard();  // what it says, the engine's status says too
  return why;
}

Status Engine::discard_step() {
  now_ = Now::between_steps;
  give_up_arriving();
  // What the trainer has put on its stream still reads what it was given.
  Event done;
  if (std::exchange(has_acquired_, false) && core_->device() != nullptr) {
    const Result<Event> event = core_->device()->device().record(pass_stream_);
    PENSTOCK_TRY(device_refused(event.status()));
    done = *event;
  }
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
                        [&](EngineCore& core) {
                          core.executor().abandon(done);
                          return Status();
                        }));
  // With clipping nothing that rests in host memory was updated yet, but for weights whose update was speculative.
  auto which = plan_->clipping ? EngineCore::Resting::weights_without_state : EngineCore::Resting::all;
  return when_idle([&](EngineCore& core) {
    if (!plan_->clipping) core.executor().forget_unwritten();
    return fail_if_half_done(core, core.load_resting(which));
  });
}

}  // namespace penstock::engine
