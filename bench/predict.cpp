// Does a step take as long as the simulator predicted?
//
// On paper: the simulator runs the very plan that is executed in virtual time, so only its rates can be wrong. They are
// measured on the same drives before each configuration, and corrected for drift by the rate of the store's own bytes
// just before and just after the steps, with nothing computed.
//
//   build/bench/predict FOLDER[,FOLDER...] [--configurations 20] [--throttled FOLDER] [--quick] [--json]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/support/flags.h"
#include "bench/support/run_simulation.h"
#include "bench/support/steps.h"
#include "bench/support/store_rate.h"
#include "tiering/plan/simulator.h"
#include "tools/nvme/statistics.h"
#include "tools/system/words.h"
#include "tools/update/measured_machine.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

constexpr int kFirstSteps = 2, kSteps = 3;
constexpr int kRounds = 5;

struct Configuration {
  uint64_t parameters;
  uint64_t tile_elements;
  double host_state_share;
  double strike_share;  // below 0: no clipping
  double retained;
  std::vector<std::string> folders;
};

std::vector<Configuration> configurations(const std::vector<std::string>& folders,
                                          const std::vector<std::string>& throttled, uint64_t count,
                                          uint64_t parameters) {
  std::mt19937_64 random(1);
  std::vector<Configuration> all;
  constexpr double kShares[] = {0, 0, 0.25, 0.5, 0.75}, kStrikes[] = {-1, -1, 0, 0.25, 1}, kRetained[] = {1, 0.5, 0};
  for (uint64_t i = 0; i < count; ++i) {
    Configuration one;
    one.parameters = parameters * (1 + random() % 3);
    one.tile_elements = kBlockElements << (1 + random() % 4);
    one.host_state_share = kShares[random() % 5];
    one.strike_share = kStrikes[random() % 5];
    one.retained = kRetained[random() % 3];
    one.folders = !throttled.empty() && i % 5 == 4 ? throttled : folders;
    all.push_back(one);
  }
  return all;
}

struct Outcome {
  double actual_s = 0, predicted_s = 0;
  double ratio = 0;  // of predicted to actual, within a round
  double error() const { return std::abs(ratio - 1); }
};

// Some rounds of a few steps each, their tail included.
Result<Outcome> try_out(const Configuration& one, bool quick) {
  UpdateSettings settings;
  settings.parameters = one.parameters;
  PENSTOCK_TRY_ASSIGN(machine, measure_machine(one.folders, StateForm(),
                                               {.seconds = quick ? 0.05 : 0.4, .memory_bytes = kGiB}, no_tick));
  settings.machine = machine;
  settings.durability = Durability{};
  for (const std::string& folder : one.folders) {
    settings.folders.push_back(folder + "/predict.store");
    std::filesystem::create_directories(settings.folders.back());
  }
  settings.choices.tile_elements = one.tile_elements;
  settings.choices.host_state_share = one.host_state_share;
  settings.choices.weights = WeightTier::host;
  settings.clip = one.strike_share >= 0;
  settings.strike_share = std::max(0.0, one.strike_share);
  if (settings.clip) settings.choices.retained_host_share = one.retained;
  settings.host_bytes = 16 * one.parameters + kGiB;

  UpdateRun run(settings);
  PENSTOCK_TRY(run.create(aio::CreateOptions::Existing::replace));
  PENSTOCK_TRY(run.open());
  PENSTOCK_TRY(bench::take_steps(run, kFirstSteps));  // until every slot was written once
  bench::StoreTraffic traffic{.seconds = quick ? 0.05 : 1};
  // Of the store's own bytes, which nobody else may have open meanwhile.
  auto drives_gbps = [&]() -> Result<double> {
    run.close();
    PENSTOCK_TRY_ASSIGN(gbps, bench::measure_store_gbps(settings.folders, traffic));
    PENSTOCK_TRY(run.open());
    return gbps;
  };
  std::vector<double> actual, predicted, ratios;
  PENSTOCK_TRY_ASSIGN(before, drives_gbps());
  for (int round = 0; round < kRounds; ++round) {
    const Plan plan = run.engine().plan();
    const uint64_t done = run.engine().steps_done();
    const SimulationOptions told = bench::simulation_options(run, plan, done, done, kSteps);
    const auto begin = std::chrono::steady_clock::now();
    PENSTOCK_TRY(bench::take_steps(run, kSteps));
    actual.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kSteps);
    PENSTOCK_TRY_ASSIGN(after, drives_gbps());
    MachineProfile now = machine;
    const double drift = (before + after) / 2 / machine.striped().gbps(traffic.read_share);
    for (DriveRates& drive : now.drives) drive.burst = drive.burst.scaled(drift);
    predicted.push_back(simulate(plan, now, told).total_s / kSteps);
    ratios.push_back(predicted.back() / actual.back());
    before = after;
  }
  run.close();
  for (const std::string& folder : settings.folders) std::filesystem::remove_all(folder);
  return Outcome{median(actual), median(predicted), median(ratios)};
}

int run(int argc, char** argv) {
  std::vector<std::string> folders = {std::filesystem::current_path().string()}, throttled;
  uint64_t count = 20;
  bench::Flags flags("predict", "Does a step take as long as the simulator predicted?");
  flags.folders("FOLDER", folders, "Folders for the state, one on each drive");
  flags.folders("--throttled", throttled, "The same on slower drives, for every fifth configuration");
  flags.options().count("--configurations", count, "Number of configurations");
  flags.parse(argc, argv);
  const bool quick = flags.quick(), json = flags.json();
  if (quick) count = 2;
  std::vector<double> errors;
  for (const Configuration& one : configurations(folders, throttled, count, quick ? 4'000'000 : 80'000'000)) {
    Result<Outcome> outcome = try_out(one, quick);
    if (!outcome.ok()) {
      std::fprintf(stderr, "penstock: bench predict: %s\n", outcome.status().message().c_str());
      return static_cast<int>(outcome.status().code());
    }
    const double actual = outcome->actual_s, predicted = outcome->predicted_s;
    errors.push_back(outcome->error());
    std::string name = text(one.parameters / 1'000'000, "M tile ", one.tile_elements / kBlockElements, " blocks, host ",
                            one.host_state_share, ", clip ", one.strike_share, ", retained ", one.retained, " on ",
                            joined(one.folders, ","));
    if (json) {
      nlohmann::ordered_json line = {{"bench", "predict"},      {"case", name},
                                     {"value", predicted},      {"unit", "s"},
                                     {"against", "actual"},     {"against_value", actual},
                                     {"ratio", outcome->ratio}, {"goal", 1.0}};
      std::cout << line.dump() << std::endl;
    } else {
      std::printf("%-90s predicted %.3f s, actual %.3f s, ratio %.3f, error %4.1f %%\n", name.c_str(), predicted,
                  actual, outcome->ratio, outcome->error() * 100);
      std::fflush(stdout);
    }
  }
  std::sort(errors.begin(), errors.end());
  if (!json) {
    std::printf("median error %.1f %% (goal 10), worst %.1f %% (goal 25) over %zu configurations\n",
                errors[errors.size() / 2] * 100, errors.back() * 100, errors.size());
  }
  return 0;
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) { return penstock::tools::run(argc, argv); }
