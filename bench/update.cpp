// Does an optimizer step with its state on NVMe run at the byte floor?
//
// On paper: a parameter's lo16, m and v are read (10 B), and written back with hi16 (12 B). The floor is those bytes at
// the drive's rate for that mixture, which is measured between the steps on the store's own bytes with nothing
// computed; if the CPU is slower than the drive, its update rate is the floor. Also printed: the drive's rate at the
// same moment on a small scratch file, and the rate of a plain loop that reads, updates and writes the same tiles,
// which is lower where I/O and updates share processors.
//
//   build/bench/update FOLDER[,FOLDER...] [--params 250M,1B] [--rounds 5] [--clip never,tenth,always]
//                      [--retained 1,0.5,0] [--budget 4GiB] [--durability exit] [--quick] [--json]
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "aio/resident_memory.h"
#include "bench/support/drive_statistics.h"
#include "bench/support/flags.h"
#include "bench/support/own_process.h"
#include "bench/support/pipeline_rate.h"
#include "bench/support/run_simulation.h"
#include "bench/support/steps.h"
#include "bench/support/store_rate.h"
#include "tools/nvme/rig.h"
#include "tools/nvme/statistics.h"
#include "tools/penstock/quantity.h"
#include "tools/update/measured_machine.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::vector<std::string> folders;
  std::vector<uint64_t> parameters = {250'000'000};
  std::vector<double> strike_shares = {-1};  // below 0: not clipping at all
  std::vector<double> retained = {1};
  uint64_t budget_bytes = 0;
  std::optional<Durability> durability = Durability{};
  uint64_t seed = 1;
  int rounds = 5;
  int steps = 3;
  bool json = false;
  bool quick = false;
};

void print(const Flags& flags, const std::string& name, double value, const std::string& unit, double against,
           double ratio, double goal, const std::string& note) {
  if (flags.json) {
    nlohmann::ordered_json line = {{"bench", "update"}, {"case", name},       {"value", value},
                                   {"unit", unit},      {"against", "floor"}, {"against_value", against},
                                   {"ratio", ratio},    {"goal", goal},       {"note", note}};
    std::cout << line.dump() << std::endl;
  } else {
    std::printf("%-34s %9.3f %-8s floor %9.3f  ratio %.3f (goal %.2f)  %s\n", name.c_str(), value, unit.c_str(),
                against, ratio, goal, note.c_str());
    std::fflush(stdout);
  }
}

// What a step without redo moves over the lane.
uint64_t lane_bytes(const Plan& plan, Lane lane) {
  uint64_t sum = 0;
  for (const Move& move : plan.moves) {
    if (move.lane == lane && move.kind != MoveKind::update_again) sum += move.bytes;
  }
  return sum;
}

struct BytesPerParameter {
  double read = 0, written = 0;  // bytes a parameter
};

class Case {
 public:
  Case(const Flags& flags, uint64_t parameters, double strike_share, double retained)
      : flags_(flags),
        per_(static_cast<double>(parameters)),
        strike_share_(strike_share),
        retained_(retained),
        probe_s_(flags.quick ? 0.1 : 1.0) {
    settings_.parameters = parameters;
    settings_.seed = flags.seed;
    for (const std::string& folder : flags.folders) settings_.folders.push_back(folder + "/update.store");
    // All states on NVMe; the weight in host memory, written through.
    settings_.host_bytes = flags.budget_bytes ? flags.budget_bytes : parameters * 2 + parameters * 2 + kGiB;
    settings_.choices.host_state_share = flags.budget_bytes ? std::optional<double>() : 0.0;
    settings_.choices.weights = flags.budget_bytes ? WeightTier::automatic : WeightTier::host;
    settings_.durability = flags.durability;
    settings_.clip = strike_share >= 0;
    settings_.strike_share = std::max(0.0, strike_share);
    if (settings_.clip) settings_.choices.retained_host_share = retained;
  }

  Status measure() {
    for (const std::string& folder : settings_.folders) std::filesystem::create_directories(folder);
    PENSTOCK_TRY_ASSIGN(
        machine, measure_machine(flags_.folders, StateForm(), {.seconds = probe_s_, .memory_bytes = kGiB}, no_tick));
    settings_.machine = machine;
    PENSTOCK_TRY_ASSIGN(rig, Rig::make({.paths = flags_.folders,
                                        .wanted_bytes = flags_.quick ? 256 * kMiB : 2 * kGiB,
                                        .memory_bytes = 16 * kMiB},
                                       no_tick));
    rig_ = std::move(rig);
    run_ = std::make_unique<UpdateRun>(settings_);
    PENSTOCK_TRY(run_->create(aio::CreateOptions::Existing::replace));
    bench::forget_resident_peak();
    PENSTOCK_TRY(open());
    const Plan plan = run_->engine().plan();
    PENSTOCK_TRY(bench::take_steps(*run_, kFirstSteps));
    const uint64_t peak_bytes = aio::resident_bytes_peak();  // before the probes take memory of their own
    PENSTOCK_TRY_ASSIGN(first_gbps, probe());
    gbps_ = first_gbps;
    for (int round = 0; round < flags_.rounds; ++round) PENSTOCK_TRY(measure_round());
    report(plan, peak_bytes);
    run_->close();
    for (const std::string& folder : settings_.folders) std::filesystem::remove_all(folder);
    return Status();
  }

 private:
  static constexpr int kFirstSteps = 3;  // until every slot was written once

  Status open() {
    PENSTOCK_TRY(run_->open());
    opened_at_ = run_->engine().steps_done();
    return Status();
  }

  Status measure_round() {
    // An engine just opened has to learn again that gradients strike.
    if (settings_.strike_share > 0) PENSTOCK_TRY(bench::take_steps(*run_, SpeculationPolicy::kPauseAfter));
    const Plan& plan = run_->engine().plan();
    const BytesPerParameter planned = bytes_to_come(plan);
    const bench::DriveStatistics start = bench::drive_statistics_below(flags_.folders);
    const auto begin = std::chrono::steady_clock::now();
    PENSTOCK_TRY(bench::take_steps(*run_, flags_.steps));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    const bench::DriveStatistics end = bench::drive_statistics_below(flags_.folders);
    const double update_bytes = static_cast<double>(lane_bytes(plan, Lane::update)) / per_;
    PENSTOCK_TRY_ASSIGN(after_gbps, probe());

    auto a_step = [&](uint64_t bytes) { return static_cast<double>(bytes) / flags_.steps / per_; };
    const BytesPerParameter moved{a_step(end.read_bytes - start.read_bytes),
                                  a_step(end.written_bytes - start.written_bytes)};
    const double drive_ns = (moved.read + moved.written) / ((gbps_ + after_gbps) / 2);
    gbps_ = after_gbps;
    ns_.push_back(elapsed.count() / flags_.steps / per_ * 1e9);
    floors_.push_back(std::max(drive_ns, update_bytes / settings_.machine.host_gbps));
    ratios_.push_back(floors_.back() / ns_.back());
    const double pipeline_gbps = (pipeline_gbps_[pipeline_gbps_.size() - 2] + pipeline_gbps_.back()) / 2;
    pipeline_ratios_.push_back((moved.read + moved.written) / pipeline_gbps / ns_.back());
    reads_.push_back(moved.read);
    writes_.push_back(moved.written);
    planned_reads_.push_back(planned.read);
    planned_writes_.push_back(planned.written);
    return Status();
  }

  // What the next steps will move: what is struck is redone as far as it had been updated.
  BytesPerParameter bytes_to_come(const Plan& plan) const {
    if (settings_.strike_share == 0) {
      return {static_cast<double>(plan.read_bytes()) / per_, plan.mean_written_bytes(plan.durability) / per_};
    }
    const auto steps = static_cast<uint32_t>(flags_.steps);
    const uint64_t done = run_->engine().steps_done();
    const Simulation simulation =
        simulate(plan, settings_.machine, bench::simulation_options(*run_, plan, opened_at_, done, steps));
    BytesPerParameter sum;
    for (const SimulatedStep& step : simulation.steps) {
      sum.read += static_cast<double>(step.read_bytes) / steps / per_;
      sum.written += static_cast<double>(step.written_bytes) / steps / per_;
    }
    return sum;
  }

  // Of the store's own bytes, which nobody else may have open meanwhile.
  Result<double> probe() {
    const Plan& plan = run_->engine().plan();
    const BytesPerParameter coming = bytes_to_come(plan);
    traffic_.read_share = coming.read / (coming.read + coming.written);
    traffic_.seconds = probe_s_;
    run_->close();
    PENSTOCK_TRY_ASSIGN(gbps, bench::measure_store_gbps(settings_.folders, traffic_));
    PENSTOCK_TRY_ASSIGN(scratch,
                        rig_->run({.read_share = traffic_.read_share, .depth = 8, .seconds = probe_s_}, no_tick));
    PENSTOCK_TRY_ASSIGN(pipeline_gbps, bench::measure_pipeline_gbps(settings_.folders, StateForm(), traffic_));
    store_gbps_.push_back(gbps);
    pipeline_gbps_.push_back(pipeline_gbps);
    scratch_gbps_.push_back(scratch.gbps());
    PENSTOCK_TRY(open());
    return gbps;
  }

  void report(const Plan& plan, uint64_t peak_bytes) const {
    std::string name = text(settings_.parameters / 1'000'000, "M");
    if (settings_.clip) name += text(" clip ", strike_share_, " retained ", retained_);
    if (flags_.budget_bytes) name += text(" budget ", bytes_text(flags_.budget_bytes));
    if (text_of(plan.durability) != "step") name += text(" durable ", text_of(plan.durability));
    print(
        flags_, name, median(ns_), "ns/param", median(floors_), median(ratios_), 1 / 1.05,
        text("read ", median(reads_), " of ", median(planned_reads_), " B, written ", median(writes_), " of ",
             median(planned_writes_), " B, peak ", bytes_text(peak_bytes), " of ",
             bytes_text(plan.needed_bytes(Tier::host)), " planned; the drives reach ", median(store_gbps_), " GB/s, ",
             median(scratch_gbps_), " on a scratch file, ", median(pipeline_gbps_),
             " in a plain loop that reads, updates and writes: ", fixed(median(pipeline_ratios_), 3), " of its speed"));
  }

  const Flags& flags_;
  const double per_;
  const double strike_share_, retained_;
  const double probe_s_;
  UpdateSettings settings_;
  bench::StoreTraffic traffic_;
  std::unique_ptr<Rig> rig_;
  std::unique_ptr<UpdateRun> run_;
  uint64_t opened_at_ = 0;
  double gbps_ = 0;  // of the last probe, which stands between two rounds
  // By round.
  std::vector<double> ratios_, pipeline_ratios_, ns_, floors_, reads_, writes_, planned_reads_, planned_writes_,
      store_gbps_, scratch_gbps_, pipeline_gbps_;
};

int run(int argc, char** argv) {
  Flags flags;
  flags.folders = {std::filesystem::current_path().string()};
  uint64_t rounds = 5, steps = 3;
  bench::Flags line("update", "Does an optimizer step with its state on NVMe run at the byte floor?");
  line.folders("FOLDER", flags.folders, "Folders for the state, one on each drive");
  line.options().count_list("--params", flags.parameters, "Parameters of the model; one case for each value");
  line.options().count("--rounds", rounds, "Measurements of each case");
  line.options().count("--steps", steps, "Steps of one measurement");
  line.numbers("--clip", flags.strike_shares, {{"off", -1}, {"never", 0}, {"tenth", 0.1}, {"always", 1}},
               "How often the norm strikes: off, never, tenth, always");
  line.options().share_list("--retained", flags.retained, "Shares of the retained gradients that are in host memory");
  line.options().durability("--durability", flags.durability);
  line.options().bytes("--budget", flags.budget_bytes, "Host memory; 0: as much as the tiles need");
  line.parse(argc, argv);
  flags.rounds = static_cast<int>(rounds);
  flags.steps = static_cast<int>(steps);
  flags.json = line.json();
  flags.quick = line.quick();
  if (flags.quick) {
    flags.parameters = {8'000'000};
    flags.rounds = 1;
    flags.strike_shares = {-1, 0.1};
  }
  for (uint64_t parameters : flags.parameters) {
    for (double strikes : flags.strike_shares) {
      for (double retained : strikes < 0 ? std::vector<double>{1} : flags.retained) {
        const int code =
            bench::in_own_process("update", [&] { return Case(flags, parameters, strikes, retained).measure(); });
        if (code != 0) return code;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) { return penstock::tools::run(argc, argv); }
