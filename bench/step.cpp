// Does a whole training step take as long as the slower of its computing and its bytes?
//
// On paper: with weights and state on drives, a parameter is read twice as a weight (2 B each for forward and backward,
// whose copy stays for the update) and once as state (10 B), and written once (12 B): 26 B at the drives' rate for that
// mixture, which is measured before and after each round on the store's own bytes with nothing computed. Computing
// takes a set multiple of that time, asleep as beside a GPU, or spinning on all processors, where updates and computing
// share them and the floor is the sum of the two.
//
//   build/bench/step FOLDER[,FOLDER...] [--params 200M] [--compute half,equal,twice] [--computing sleep,spin]
//                    [--activations keep,recompute] [--rounds 3] [--steps 3] [--budget 1GiB] [--quick] [--json]
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "aio/resident_memory.h"
#include "bench/support/drive_statistics.h"
#include "bench/support/flags.h"
#include "bench/support/own_process.h"
#include "bench/support/step_run.h"
#include "bench/support/store_access.h"
#include "bench/support/store_rate.h"
#include "tools/nvme/statistics.h"
#include "tools/system/words.h"
#include "tools/update/measured_machine.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

constexpr uint32_t kUnits = 24;
constexpr int kFirstSteps = 3;  // until every slot was written once
using bench::kReadBytes, bench::kWrittenBytes;

struct Flags {
  std::vector<std::string> folders;
  uint64_t parameters = 200'000'000;
  std::vector<double> compute = {0.5, 1, 2};
  std::vector<double> computing = {0, 1};
  std::vector<double> activations = {0, 1};
  uint64_t budget_bytes = kGiB;
  uint64_t rounds = 3, steps = 3;
  bool json = false, quick = false;
};

struct CaseOf {
  double compute;  // in the drives' time
  bench::Computing computing;
  ActivationChoice activations;
};

std::string words_of(const CaseOf& one) {
  return text(one.compute, one.computing == bench::Computing::spin ? " spinning" : " asleep",
              recomputes(one.activations) ? ", recompute" : ", keep");
}

// What a step's drives and updates take with nothing else to do.
struct Alone {
  double drives_s = 0, updates_s = 0;
};

class Case {
 public:
  Case(const Flags& flags, const CaseOf& one) : flags_(flags), one_(one) {}

  Status measure() {
    std::vector<std::string> stores;
    for (const std::string& folder : flags_.folders) {
      stores.push_back(folder + "/step.store");
      std::filesystem::create_directories(stores.back());
    }
    settings_.folders = stores;
    settings_.units = kUnits;
    settings_.unit_elements = flags_.parameters / kUnits;
    settings_.computing = one_.computing;
    settings_.host_bytes = flags_.budget_bytes + aio::resident_bytes();
    settings_.choices.host_state_share = 0;
    settings_.choices.weights = WeightTier::nvme;
    settings_.choices.activations = one_.activations;
    PENSTOCK_TRY_ASSIGN(
        machine, measure_machine(flags_.folders, StateForm(), {.seconds = probe_s(), .memory_bytes = kGiB}, no_tick));
    settings_.machine = machine;
    PENSTOCK_TRY(bench::StepRun(settings_).create());
    PENSTOCK_TRY(set_computing());
    Status measured;
    for (uint64_t round = 0; measured.ok() && round < flags_.rounds; ++round) measured = measure_round();
    for (const std::string& folder : stores) std::filesystem::remove_all(folder);
    PENSTOCK_TRY(measured);
    report();
    return Status();
  }

 private:
  double probe_s() const { return flags_.quick ? 0.1 : 1; }
  double parameters() const { return static_cast<double>(settings_.units * settings_.unit_elements); }

  // Of the store's own bytes, which nobody else may have open meanwhile.
  Result<Alone> probe() {
    bench::StoreTraffic traffic{.read_share = kReadBytes / (kReadBytes + kWrittenBytes), .seconds = probe_s()};
    traffic.first_tile = first_tile_;
    PENSTOCK_TRY_ASSIGN(gbps, bench::measure_store_gbps(settings_.folders, traffic));
    first_tile_ = traffic.first_tile;
    const uint64_t bytes = update_bytes_;
    return Alone{(kReadBytes + kWrittenBytes) * parameters() / gbps / 1e9,
                 static_cast<double>(bytes) / settings_.machine.host_gbps / 1e9};
  }

  Status set_computing() {
    PENSTOCK_TRY_ASSIGN(alone, probe());
    const double passes = recomputes(one_.activations) ? 4.0 / 3 : 1;  // forward is run once more
    settings_.compute_s = one_.compute * alone.drives_s / passes;
    compute_s_ = one_.compute * alone.drives_s;
    before_ = alone;
    return Status();
  }

  Status measure_round() {
    bench::StepRun run(settings_);
    bench::forget_resident_peak();
    PENSTOCK_TRY(run.open());
    const Plan& plan = run.engine().plan();
    update_bytes_ = 0;
    for (const Move& move : plan.moves) update_bytes_ += move.kind == MoveKind::update ? move.bytes : 0;
    for (int i = 0; i < kFirstSteps; ++i) PENSTOCK_TRY(run.step().status());
    const bench::DriveStatistics start = bench::drive_statistics_below(flags_.folders);
    const engine::DriveBytes found = run.engine().drive_bytes();
    const auto begin = std::chrono::steady_clock::now();
    double moved_bytes = 0, first_wait_s = 0;
    for (uint64_t i = 0; i < flags_.steps; ++i) {
      PENSTOCK_TRY_ASSIGN(step, run.step());
      moved_bytes += static_cast<double>(step.report.read_bytes + step.report.written_bytes);
      first_wait_s += step.first_wait_s;
      for (size_t lane = 0; lane < kLanes; ++lane) stalls_s_[lane] += step.report.stall_s[lane];
      intake_s_ += step.report.intake_s;
      predicted_s_ = step.report.predicted_s;
      ++steps_;
    }
    const double elapsed_s = bench::seconds_since(begin), steps = static_cast<double>(flags_.steps);
    const bench::DriveStatistics end = bench::drive_statistics_below(flags_.folders);
    const auto drive_bytes = static_cast<double>(end.read_bytes - start.read_bytes) +
                             static_cast<double>(end.written_bytes - start.written_bytes);
    // Of what updates leave for the next forward, as much as was found there.
    const double found_bytes = static_cast<double>((run.engine().drive_bytes() - found).found_bytes) / steps;
    const double planned = static_cast<double>(plan.bytes_on(Lane::nvme_read) + plan.written_bytes()) - found_bytes;
    step_s_.push_back(elapsed_s / steps);
    waits_.push_back(first_wait_s / elapsed_s);
    moved_.push_back(moved_bytes / steps / planned);
    drive_bytes_.push_back(drive_bytes / steps / planned);
    planned_b_ = planned / parameters();
    peak_bytes_ = std::max(peak_bytes_, aio::resident_bytes_peak());
    needed_bytes_ = plan.needed_bytes(Tier::host);
    run.close();
    PENSTOCK_TRY_ASSIGN(after, probe());
    const double drives_s = (before_.drives_s + after.drives_s) / 2;
    const bool spins = one_.computing == bench::Computing::spin;
    floors_.push_back(std::max(drives_s, compute_s_ + (spins ? after.updates_s : 0)));
    ratios_.push_back(step_s_.back() / floors_.back());
    before_ = after;
    return Status();
  }

  void report() const {
    const double goal = one_.computing == bench::Computing::spin ? 1.05 : 1.03;
    if (flags_.json) {
      const nlohmann::ordered_json line = {{"bench", "step"},
                                           {"case", words_of(one_)},
                                           {"value", median(step_s_)},
                                           {"unit", "s"},
                                           {"against", "floor"},
                                           {"against_value", median(floors_)},
                                           {"ratio", median(ratios_)},
                                           {"goal", goal},
                                           {"first_wait_share", median(waits_)},
                                           {"moved_of_plan", median(moved_)},
                                           {"drives_of_plan", median(drive_bytes_)},
                                           {"peak_bytes", peak_bytes_},
                                           {"needed_bytes", needed_bytes_},
                                           {"budget_bytes", settings_.host_bytes}};
      std::cout << line.dump() << std::endl;
      return;
    }
    const auto [least, most] = std::minmax_element(ratios_.begin(), ratios_.end());
    std::printf("%-24s %.3f s, floor %.3f s: %.3f [%.3f-%.3f], goal %.2f; first wait %.1f %%; ", words_of(one_).c_str(),
                median(step_s_), median(floors_), median(ratios_), *least, *most, goal, 100 * median(waits_));
    std::printf("moved %.4f of the plan's %.2f B, the drives %.4f; peak %s of %s planned, budget %s; predicted %.3f s",
                median(moved_), planned_b_, median(drive_bytes_), bytes_text(peak_bytes_).c_str(),
                bytes_text(needed_bytes_).c_str(), bytes_text(settings_.host_bytes).c_str(), predicted_s_);
    std::printf("\n    a step waits");
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double seconds = stalls_s_[lane] / steps_;
      if (seconds > 1e-3) std::printf(" %.3f s for %s,", seconds, name_of(static_cast<Lane>(lane)));
    }
    std::printf(" and takes gradients in for %.3f s\n", intake_s_ / steps_);
    std::fflush(stdout);
  }

  const Flags& flags_;
  const CaseOf one_;
  bench::StepSettings settings_;
  double compute_s_ = 0;
  Alone before_;  // of the probe between two rounds
  uint64_t first_tile_ = 0, update_bytes_ = 0;
  double predicted_s_ = 0, planned_b_ = 0, intake_s_ = 0, steps_ = 0;
  std::array<double, kLanes> stalls_s_{};
  uint64_t peak_bytes_ = 0, needed_bytes_ = 0;
  std::vector<double> step_s_, floors_, ratios_, waits_, moved_, drive_bytes_;  // by round
};

int run(int argc, char** argv) {
  Flags flags;
  flags.folders = {std::filesystem::current_path().string()};
  bench::Flags line("step", "Does a whole step take as long as the slower of its computing and its bytes?");
  line.folders("FOLDER", flags.folders, "Folders for the state, one on each drive");
  line.options().count("--params", flags.parameters, "Parameters of the model, in 24 equal units");
  line.numbers("--compute", flags.compute, {{"half", 0.5}, {"equal", 1}, {"twice", 2}},
               "Computing, in the drives' time for a step: half, equal, twice");
  line.numbers("--computing", flags.computing, {{"sleep", 0}, {"spin", 1}},
               "Who computes: sleep, another processor; spin, all of this machine's");
  line.numbers("--activations", flags.activations, {{"keep", 0}, {"recompute", 1}}, "keep, recompute");
  line.options().bytes("--budget", flags.budget_bytes, "Host memory, the program not included");
  line.options().count("--rounds", flags.rounds, "Measurements of each case");
  line.options().count("--steps", flags.steps, "Steps of one measurement");
  line.parse(argc, argv);
  flags.json = line.json();
  flags.quick = line.quick();
  if (flags.quick) {
    flags.parameters = 12'000'000;
    flags.rounds = 1;
    flags.compute = {1};
    flags.activations = {0};
  }
  for (double computing : flags.computing) {
    for (double activations : flags.activations) {
      for (double compute : flags.compute) {
        const CaseOf one{compute, static_cast<bench::Computing>(computing),
                         activations > 0 ? ActivationChoice::recompute : ActivationChoice::keep};
        const int code = bench::in_own_process("step", [&] { return Case(flags, one).measure(); });
        if (code != 0) return code;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) { return penstock::tools::run(argc, argv); }
