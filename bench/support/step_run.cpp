#include "bench/support/step_run.h"

#include <time.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <limits>
#include <thread>

#include "aio/resident_memory.h"
#include "bench/support/store_access.h"
#include "tools/update/update_run.h"

namespace penstock::bench {
namespace {

double thread_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void spin(double seconds) {
  for (const double until = thread_s() + seconds; thread_s() < until;) {
  }
}

// Threads for the whole run, as a library's that computes.
class Spinners {
 public:
  Spinners() : begin_(count()), end_(count()) {
    for (ptrdiff_t i = 1; i < count(); ++i) others_.emplace_back([this] { spin_along(); });
  }
  ~Spinners() {
    seconds_ = -1;
    begin_.arrive_and_wait();
  }
  void spin_all(double seconds) {
    seconds_ = seconds;
    begin_.arrive_and_wait();
    spin(seconds);
    end_.arrive_and_wait();
  }

 private:
  static ptrdiff_t count() { return std::max(1u, std::thread::hardware_concurrency()); }
  void spin_along() {
    while (true) {
      begin_.arrive_and_wait();
      if (seconds_ < 0) return;
      spin(seconds_);
      end_.arrive_and_wait();
    }
  }

  double seconds_ = 0;
  std::barrier<> begin_, end_;
  std::vector<std::jthread> others_;
};

void spin_on_all_processors(double seconds) {
  static Spinners spinners;
  spinners.spin_all(seconds);
}

std::vector<Hyper> usual_groups() {
  std::vector<Hyper> groups(tools::SyntheticModel::kGroups, {.lr = 1e-4, .beta2 = 0.95});
  groups[tools::SyntheticModel::kMatrices].weight_decay = 0.1;
  return groups;
}

}  // namespace

double drives_s(const MachineProfile& machine, uint64_t parameters) {
  constexpr double kBytes = kReadBytes + kWrittenBytes;
  return kBytes * static_cast<double>(parameters) / machine.striped().gbps(kReadBytes / kBytes) / 1e9;
}

StepRun::StepRun(const StepSettings& settings)
    : settings_(settings),
      model_(settings.units * settings.unit_elements, settings.unit_elements, 1),
      groups_(usual_groups()) {
  PlanRequest& request = options_.request;
  Workload& workload = request.workload;
  workload.units = model_.units();
  workload.scope = StepScope::training;
  workload.micro_batches = settings.micro_batches;
  if (settings.clips) workload.clipping.norm = 4 * settings.micro_batches * model_.gradient_norm();
  // Backward takes twice as long as forward.
  const double forward_s = settings.compute_s / (3.0 * settings.micro_batches * settings.units);
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    workload.uses.push_back({.name = workload.units[unit].name,
                             .units = {unit},
                             .forward_s = forward_s,
                             .backward_s = 2 * forward_s,
                             .activation_bytes = settings.activation_bytes,
                             .boundary_bytes = 64 * kKiB,
                             .gradients_stay = true});
  }
  request.stores_activations = false;
  request.machine = settings.machine;
  request.budgets.host_bytes = settings.host_bytes;
  if (settings.computing == Computing::sleep) {
    // A device that computes in host memory: nothing is copied to it, and it leaves the processors to updates.
    request.machine.devices = 1;
    request.machine.host_to_device_gbps = request.machine.device_to_host_gbps = 0;
    request.budgets.device_bytes = std::numeric_limits<uint64_t>::max();
  }
  request.choices = settings.choices;
  request.durability = settings.durability;
  options_.new_plan_rule = settings.new_plan_rule;
  options_.on_new_plan = settings.on_new_plan;
  options_.drives = engine::direct_drives(settings.folders);
}

Status StepRun::create() {
  auto initial = [&](uint32_t unit, uint64_t first, std::span<float> values) {
    model_.initial(unit, first, values);
    return Status();
  };
  count_process();
  return engine::Engine::create(options_, initial, aio::CreateOptions::Existing::replace);
}

Status StepRun::open() {
  count_process();
  PENSTOCK_TRY_ASSIGN(opened, engine::Engine::open(options_));
  engine_ = std::move(opened);
  return Status();
}

void StepRun::count_process() { options_.request.process_bytes = aio::resident_bytes() + kEngineOverheadBytes; }

void StepRun::compute(const Plan& plan, const engine::ComputePass& pass) const {
  const Use& use = options_.request.workload.uses[pass.use];
  double seconds = use.forward_s;
  if (pass.direction == Direction::backward) {
    seconds = use.backward_s + (recomputes(plan.activations[pass.use]) ? use.forward_s : 0);
  }
  if (settings_.computing == Computing::spin) return spin_on_all_processors(seconds);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

Result<StepRun::Step> StepRun::step() {
  using namespace engine;
  Step step;
  const uint64_t number = engine_->steps_done() + 1;
  PENSTOCK_TRY(engine_->begin({.groups = groups_, .micro_batches = settings_.micro_batches}));
  const std::vector<ComputePass> passes = engine_->passes();
  for (const ComputePass& pass : passes) {
    const auto asked = std::chrono::steady_clock::now();
    PENSTOCK_TRY(engine_->acquire(pass).status());
    if (pass == passes.front()) step.first_wait_s = seconds_since(asked);
    compute(engine_->plan(), pass);
    if (pass.direction == Direction::backward) {
      PENSTOCK_TRY(engine_->gradient(pass.use, pass.micro_batch, Dtype::bf16, model_.gradient(number, pass.use)));
    }
    PENSTOCK_TRY(engine_->release(pass));
  }
  PENSTOCK_TRY_ASSIGN(report, engine_->step());
  step.report = report;
  return step;
}

}  // namespace penstock::bench
