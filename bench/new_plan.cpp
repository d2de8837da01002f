// When a drive becomes slower in the middle of a run, does the engine find the plan that is then faster, and is it
// faster by what the simulator says?
//
// On paper: by the rates at the beginning a step computes for longer than the drives move its 26 B a parameter, so all
// activations are kept, and they take the memory in which state could rest. At a third of the rate the drives take
// longer than computing, and what pays is to compute forward again (4/3 of the computing) with state at rest in that
// memory: with half of it there, the drives move half as much.
//
//   build/bench/new_plan [FOLDER] [--throttle COMMAND] [--params 40M] [--steps 4] [--quick] [--json]
//
// The command makes the folder's drive slower, for example a line for blkio.throttle or io.max of its control group.
// Without one, the profile of the first plan says three times what the drive gives, which the engine cannot tell from a
// drive that has become slower. The bits are compared with those of a run of as many steps that keeps its first plan.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "aio/resident_memory.h"
#include "bench/support/flags.h"
#include "bench/support/own_process.h"
#include "bench/support/step_run.h"
#include "tiering/store/store_hash.h"
#include "tools/nvme/statistics.h"
#include "tools/system/words.h"
#include "tools/update/measured_machine.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

constexpr uint32_t kUnits = 24;
constexpr double kComputing = 1.3;       // of the drives' time by the first rates
constexpr uint64_t kStepsToChange = 10;  // the goal, at most
constexpr uint64_t kStepsMost = 20;      // after which no plan is expected any more
constexpr uint64_t kFirstSteps = 2;      // until every slot was written once
constexpr double kSlower = 3;

struct Flags {
  std::string folder;
  std::string throttle;
  uint64_t parameters = 40'000'000;
  uint64_t steps = 4;
  bool json = false, quick = false;
};

class Case {
 public:
  explicit Case(const Flags& flags) : flags_(flags) {}

  Status measure() {
    store_ = flags_.folder + "/new_plan.store";
    std::filesystem::create_directories(store_);
    const Status measured = measure_in_store();
    std::filesystem::remove_all(store_);
    return measured;
  }

 private:
  Status measure_in_store() {
    bench::StepSettings settings = settings_of_run();
    PENSTOCK_TRY_ASSIGN(machine, measure_machine({flags_.folder}, StateForm(),
                                                 {.seconds = flags_.quick ? 0.1 : 1, .memory_bytes = kGiB}, no_tick));
    settings.machine = machine;
    if (flags_.throttle.empty()) {
      for (DriveRates& drive : settings.machine.drives) drive.burst = drive.burst.scaled(kSlower);
    }
    settings.compute_s = kComputing * bench::drives_s(settings.machine, settings.units * settings.unit_elements);
    settings.on_new_plan = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    settings.new_plan_rule = NewPlanRule{};
    PENSTOCK_TRY_ASSIGN(with_new_plan, state_after(settings, [this](bench::StepRun& run) { return train(run); }));
    settings.new_plan_rule.reset();
    settings.host_bytes = settings_of_run().host_bytes;  // this process has grown
    PENSTOCK_TRY_ASSIGN(with_first_plan, state_after(settings, [this](bench::StepRun& run) {
                          Status status;
                          while (status.ok() && run.engine().steps_done() < steps_) status = run.step().status();
                          return status;
                        }));
    planes_ = with_new_plan.size();
    for (size_t i = 0; i < planes_; ++i) planes_different_ += with_new_plan[i] != with_first_plan[i];
    report();
    return Status();
  }

  bench::StepSettings settings_of_run() const {
    bench::StepSettings settings;
    settings.folders = {store_};
    settings.units = kUnits;
    settings.unit_elements = flags_.parameters / kUnits;
    settings.durability = {Durability::Kind::exit, 1};
    // Kept, they take what is left beside windows; of state, 12 B a parameter, half could rest there.
    settings.activation_bytes = round_up(6 * flags_.parameters / kUnits, kMiB);
    const uint64_t under_way = 3 * 2 * settings.unit_elements + (flags_.quick ? 48 : 128) * kMiB;
    settings.host_bytes = aio::resident_bytes() + kUnits * settings.activation_bytes + under_way;
    return settings;
  }

  static Result<double> timed_step(bench::StepRun& run, uint64_t* new_plans) {
    const auto begin = std::chrono::steady_clock::now();
    PENSTOCK_TRY_ASSIGN(step, run.step());
    *new_plans = step.report.new_plans;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Status train(bench::StepRun& run) {
    uint64_t new_plans = 0;
    std::vector<double> undisturbed, slow, changed;
    if (!flags_.throttle.empty()) {
      for (uint64_t i = 0; i < kFirstSteps + flags_.steps; ++i) {
        PENSTOCK_TRY_ASSIGN(seconds, timed_step(run, &new_plans));
        if (i >= kFirstSteps) undisturbed.push_back(seconds);
      }
      if (new_plans > 0) return Status(Code::kEnvironment, "bench new_plan: a new plan before the drive was throttled");
      if (std::system(flags_.throttle.c_str()) != 0) {
        return Status(Code::kEnvironment, text("bench new_plan: ", flags_.throttle, ": failed"));
      }
    }
    const Plan first = run.engine().plan();
    while (new_plans == 0 && slow.size() < kStepsMost) {
      PENSTOCK_TRY_ASSIGN(seconds, timed_step(run, &new_plans));
      slow.push_back(seconds);
    }
    has_changed_ = new_plans > 0;
    slow.pop_back();           // it has the change in it
    slow.erase(slow.begin());  // it has begun at the old rate, or has written slots for the first time
    steps_to_change_ = slow.size() + 1;
    PENSTOCK_TRY(timed_step(run, &new_plans).status());  // whose read-ahead found the lanes empty
    for (uint64_t i = 0; i < flags_.steps; ++i) {
      PENSTOCK_TRY_ASSIGN(seconds, timed_step(run, &new_plans));
      changed.push_back(seconds);
    }
    if (!undisturbed.empty()) undisturbed_s_ = median(undisturbed);
    slow_s_ = median(slow);
    changed_s_ = median(changed);
    predicted_slow_s_ = predicted_step_s(first, run.engine().request().machine);
    predicted_changed_s_ = run.engine().predicted_step_s();
    steps_ = run.engine().steps_done();
    return Status();
  }

  static Result<std::vector<uint64_t>> state_after(const bench::StepSettings& settings,
                                                   const std::function<Status(bench::StepRun&)>& steps) {
    bench::StepRun run(settings);
    PENSTOCK_TRY(run.create());
    PENSTOCK_TRY(run.open());
    PENSTOCK_TRY(steps(run));
    return state_of(run);
  }

  // Of every unit's weights, and of every plane of its state, what its bits hash to.
  static Result<std::vector<uint64_t>> state_of(bench::StepRun& run) {
    PENSTOCK_TRY(run.engine().settle());
    std::vector<uint64_t> hashes;
    const Workload& workload = run.request().workload;
    for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
      std::vector<Plane> planes = resting_planes(workload.form);
      planes.push_back({Role::weight, workload.form.weight});
      for (const Plane& plane : planes) {
        std::vector<std::byte> values(plane.bytes(workload.units[unit].elements));
        PENSTOCK_TRY(run.engine().read(unit, plane.role, 0, values));
        hashes.push_back(store_hash(values, 0));
      }
    }
    return hashes;
  }

  void report() const {
    const double faster = slow_s_ / changed_s_, predicted = predicted_slow_s_ / predicted_changed_s_;
    if (flags_.json) {
      const nlohmann::ordered_json line = {
          {"bench", "new_plan"},
          {"case", flags_.throttle.empty() ? "profile" : "throttled"},
          {"value", has_changed_ ? nlohmann::ordered_json(faster) : nlohmann::ordered_json()},
          {"unit", "x"},
          {"against", "predicted"},
          {"against_value", predicted},
          {"ratio", has_changed_ ? nlohmann::ordered_json(faster / predicted) : nlohmann::ordered_json()},
          {"goal", 1.0},
          {"steps_to_change", steps_to_change_},
          {"planes_different", planes_different_}};
      std::cout << line.dump() << std::endl;
      return;
    }
    if (!has_changed_) {  // of a few small steps a busy drive may say anything
      std::printf("no new plan within %zu steps (goal %zu); %zu of %zu planes differ from a run with the first plan\n",
                  static_cast<size_t>(kStepsMost), static_cast<size_t>(kStepsToChange),
                  static_cast<size_t>(planes_different_), static_cast<size_t>(planes_));
      return;
    }
    if (undisturbed_s_ > 0) std::printf("before: %.3f s a step\n", undisturbed_s_);
    std::printf("slow drive: %.3f s a step, predicted %.3f s; a new plan after %zu steps (goal %zu)\n", slow_s_,
                predicted_slow_s_, static_cast<size_t>(steps_to_change_), static_cast<size_t>(kStepsToChange));
    std::printf(
        "new plan: %.3f s a step, predicted %.3f s; %.2f times as fast, predicted %.2f: ratio %.3f (goal 0.85 to "
        "1.15); %zu of %zu planes differ from a run with the first plan\n",
        changed_s_, predicted_changed_s_, faster, predicted, faster / predicted, static_cast<size_t>(planes_different_),
        static_cast<size_t>(planes_));
  }

  const Flags& flags_;
  std::string store_;
  bool has_changed_ = false;
  uint64_t steps_ = 0, steps_to_change_ = 0, planes_ = 0, planes_different_ = 0;
  double undisturbed_s_ = 0, slow_s_ = 0, changed_s_ = 0, predicted_slow_s_ = 0, predicted_changed_s_ = 0;
};

int run(int argc, char** argv) {
  Flags flags;
  flags.folder = std::filesystem::current_path().string();
  bench::Flags line("new_plan", "Does a run find a faster plan when its drive becomes slower?");
  line.folder(flags.folder, "Folder on the drive");
  line.options().text("--throttle", flags.throttle, "COMMAND", "What makes the drive slower");
  line.options().count("--params", flags.parameters, "Parameters of the model, in 24 equal units");
  line.options().count("--steps", flags.steps, "Steps that are measured of each plan");
  line.parse(argc, argv);
  flags.json = line.json();
  flags.quick = line.quick();
  if (flags.quick) {
    flags.parameters = 12'000'000;
    flags.steps = 2;
  }
  return bench::in_own_process("new_plan", [&] { return Case(flags).measure(); });
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) { return penstock::tools::run(argc, argv); }
