#include "bench/support/configured_steps.h"

#include <optional>

#include "bench/support/run_simulation.h"
#include "bench/support/step_run.h"
#include "bench/support/steps.h"
#include "tiering/plan/simulator.h"
#include "tools/update/update_run.h"

namespace penstock::bench {
namespace {

template <typename Value, size_t kCount>
Value one_of(std::mt19937_64& random, const Value (&values)[kCount]) {
  return values[random() % kCount];
}

// The optimizer's part alone.
class Updates : public ConfiguredSteps {
 public:
  Updates(std::mt19937_64& random, uint64_t parameters) {
    settings_.parameters = parameters * (1 + random() % 3);
    settings_.choices.tile_elements = kBlockElements << (1 + random() % 4);
    settings_.choices.host_state_share = one_of(random, {0.0, 0.0, 0.25, 0.5, 0.75});
    settings_.choices.weights = WeightTier::host;
    const double strike_share = one_of(random, {-1.0, -1.0, 0.0, 0.25, 1.0});  // below 0: no clipping
    settings_.clip = strike_share >= 0;
    settings_.strike_share = std::max(0.0, strike_share);
    const double retained = one_of(random, {1.0, 0.5, 0.0});
    if (settings_.clip) settings_.choices.retained_host_share = retained;
    settings_.durability = Durability{};
    settings_.host_bytes = 16 * settings_.parameters + kGiB;
  }

  std::string words() const override {
    std::string words = text("update of ", settings_.parameters / 1'000'000, "M, tile of ",
                             *settings_.choices.tile_elements / kBlockElements, " blocks, ",
                             *settings_.choices.host_state_share, " in host memory");
    if (settings_.clip)
      words += text(", strikes ", settings_.strike_share, ", retained ", *settings_.choices.retained_host_share);
    return words;
  }

  Status create(const MachineProfile& machine, const std::vector<std::string>& folders) override {
    settings_.machine = machine;
    settings_.folders = folders;
    run_.emplace(settings_);
    return run_->create(aio::CreateOptions::Existing::replace);
  }
  Status open() override { return run_->open(); }
  void close() override { run_->close(); }
  Status take(int steps) override { return take_steps(*run_, steps); }

  double predicted_s(const MachineProfile& now, int steps) override {
    const Plan& plan = run_->engine().plan();
    const uint64_t before = run_->engine().steps_done() - static_cast<uint64_t>(steps);
    return simulate(plan, now, simulation_options(*run_, plan, before, before, static_cast<uint32_t>(steps))).total_s;
  }

 private:
  tools::UpdateSettings settings_;
  std::optional<tools::UpdateRun> run_;
};

// With the plan that the planner chose.
class WholeSteps : public ConfiguredSteps {
 public:
  WholeSteps(std::mt19937_64& random, uint64_t parameters) {
    settings_.units = one_of(random, {6u, 12u, 24u, 36u});
    settings_.unit_elements = parameters * (1 + random() % 3) / settings_.units;
    settings_.micro_batches = one_of(random, {1u, 1u, 2u, 4u});
    settings_.computing = one_of(random, {Computing::sleep, Computing::spin});
    settings_.clips = random() % 2 == 1;
    settings_.activation_bytes = one_of(random, {kMiB, 8 * kMiB});
    computing_ = one_of(random, {0.3, 0.6, 1.0, 1.5, 2.5});
    host_bytes_a_parameter_ = one_of(random, {1.0, 2.0, 4.0, 8.0, 16.0});
  }

  std::string words() const override {
    return text("step of ", parameters() / 1'000'000, "M in ", settings_.units, " units, computing ", computing_,
                settings_.computing == Computing::spin ? " spinning" : " asleep", ", ", settings_.micro_batches,
                settings_.micro_batches == 1 ? " micro-batch, " : " micro-batches, ", host_bytes_a_parameter_,
                " B of host memory a parameter", settings_.clips ? ", clipped" : "");
  }

  Status create(const MachineProfile& machine, const std::vector<std::string>& folders) override {
    settings_.machine = machine;
    settings_.folders = folders;
    settings_.compute_s = computing_ * drives_s(machine, parameters());
    const uint64_t gradients = 2 * 4 * settings_.unit_elements;  // of a unit under way, in fp32
    settings_.host_bytes =
        static_cast<uint64_t>(host_bytes_a_parameter_ * static_cast<double>(parameters())) + gradients + 256 * kMiB;
    run_.emplace(settings_);
    return run_->create();
  }
  Status open() override { return run_->open(); }
  void close() override { run_->close(); }
  Status take(int steps) override {
    for (int i = 0; i < steps; ++i) PENSTOCK_TRY(run_->step().status());
    return run_->engine().settle();
  }

  double predicted_s(const MachineProfile& now, int steps) override {
    MachineProfile machine = run_->request().machine;
    machine.drives = now.drives;
    SimulationOptions options;
    options.steps = static_cast<uint32_t>(steps);
    return simulate(run_->engine().plan(), machine, options).total_s;
  }

 private:
  uint64_t parameters() const { return settings_.units * settings_.unit_elements; }

  StepSettings settings_;
  double computing_ = 0;  // in the time that the drives take for 26 B a parameter
  double host_bytes_a_parameter_ = 0;
  std::optional<StepRun> run_;
};

}  // namespace

std::unique_ptr<ConfiguredSteps> random_updates(std::mt19937_64& random, uint64_t parameters) {
  return std::make_unique<Updates>(random, parameters);
}

std::unique_ptr<ConfiguredSteps> random_whole_steps(std::mt19937_64& random, uint64_t parameters) {
  return std::make_unique<WholeSteps>(random, parameters);
}

}  // namespace penstock::bench
