// Does a step take as long as the simulator predicted?
//
// On paper: the simulator runs the very plan that is executed in virtual time, so only its rates can be wrong. They are
// measured on the same drives before each configuration, and corrected for drift by the rate of the store's own bytes
// just before and just after the steps, with nothing computed.
//
// Whole steps compute for a while, asleep or on all processors, in one micro-batch or several, and with the plan that
// the planner chose for the budget. With --updates steps are the optimizer's part alone, over plans of any kind.
//
//   build/bench/predict FOLDER[,FOLDER...] [--updates] [--configurations 20] [--throttled FOLDER] [--quick] [--json]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/support/configured_steps.h"
#include "bench/support/flags.h"
#include "bench/support/store_rate.h"
#include "tools/nvme/statistics.h"
#include "tools/system/words.h"
#include "tools/update/measured_machine.h"

namespace penstock::tools {
namespace {

constexpr int kFirstSteps = 2, kSteps = 3;
constexpr int kRounds = 5;

struct Outcome {
  double actual_s = 0, predicted_s = 0;
  double ratio = 0;  // of predicted to actual, within a round
  double error() const { return std::abs(ratio - 1); }
};

// Some rounds of a few steps each, their tail included.
Result<Outcome> try_out(bench::ConfiguredSteps& steps, const std::vector<std::string>& drives, bool quick) {
  PENSTOCK_TRY_ASSIGN(
      machine, measure_machine(drives, StateForm(), {.seconds = quick ? 0.05 : 0.4, .memory_bytes = kGiB}, no_tick));
  std::vector<std::string> folders;
  for (const std::string& folder : drives) {
    folders.push_back(folder + "/predict.store");
    std::filesystem::create_directories(folders.back());
  }
  PENSTOCK_TRY(steps.create(machine, folders));
  PENSTOCK_TRY(steps.open());
  PENSTOCK_TRY(steps.take(kFirstSteps));  // until every slot was written once
  bench::StoreTraffic traffic{.seconds = quick ? 0.05 : 1};
  // Of the store's own bytes, which nobody else may have open meanwhile.
  auto drives_gbps = [&]() -> Result<double> {
    steps.close();
    PENSTOCK_TRY_ASSIGN(gbps, bench::measure_store_gbps(folders, traffic));
    PENSTOCK_TRY(steps.open());
    return gbps;
  };
  std::vector<double> actual, predicted, ratios;
  PENSTOCK_TRY_ASSIGN(before, drives_gbps());
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    PENSTOCK_TRY(steps.take(kSteps));
    actual.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kSteps);
    PENSTOCK_TRY_ASSIGN(after, drives_gbps());
    MachineProfile now = machine;
    const double drift = (before + after) / 2 / machine.striped().gbps(traffic.read_share);
    for (DriveRates& drive : now.drives) drive.burst = drive.burst.scaled(drift);
    predicted.push_back(steps.predicted_s(now, kSteps) / kSteps);
    ratios.push_back(predicted.back() / actual.back());
    before = after;
  }
  steps.close();
  for (const std::string& folder : folders) std::filesystem::remove_all(folder);
  return Outcome{median(actual), median(predicted), median(ratios)};
}

int run(int argc, char** argv) {
  std::vector<std::string> folders = {std::filesystem::current_path().string()}, throttled;
  uint64_t count = 20;
  bench::Flags flags("predict", "Does a step take as long as the simulator predicted?");
  flags.folders("FOLDER", folders, "Folders for the state, one on each drive");
  flags.folders("--throttled", throttled, "The same on slower drives, for every fifth configuration");
  flags.options().count("--configurations", count, "Number of configurations");
  bool updates = false;
  flags.options().flag("--updates", updates, "Of the optimizer's part alone");
  flags.parse(argc, argv);
  const bool quick = flags.quick(), json = flags.json();
  if (quick) count = 2;
  std::vector<double> errors;
  std::mt19937_64 random(1);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t parameters = quick ? 4'000'000 : updates ? 80'000'000 : 40'000'000;
    const std::unique_ptr<bench::ConfiguredSteps> steps =
        updates ? bench::random_updates(random, parameters) : bench::random_whole_steps(random, parameters);
    const std::vector<std::string>& drives = !throttled.empty() && i % 5 == 4 ? throttled : folders;
    const Result<Outcome> outcome = try_out(*steps, drives, quick);
    if (!outcome.ok()) {
      std::fprintf(stderr, "penstock: bench predict: %s: %s\n", steps->words().c_str(),
                   outcome.status().message().c_str());
      return static_cast<int>(outcome.status().code());
    }
    const double actual = outcome->actual_s, predicted = outcome->predicted_s;
    errors.push_back(outcome->error());
    const std::string name = text(steps->words(), ", on ", joined(drives, ","));
    if (json) {
      nlohmann::ordered_json line = {{"bench", "predict"},      {"case", name},
                                     {"value", predicted},      {"unit", "s"},
                                     {"against", "actual"},     {"against_value", actual},
                                     {"ratio", outcome->ratio}, {"goal", 1.0}};
      std::cout << line.dump() << std::endl;
    } else {
      std::printf("%s\n    predicted %.3f s, actual %.3f s, ratio %.3f, error %4.1f %%\n", name.c_str(), predicted,
                  actual, outcome->ratio, outcome->error() * 100);
      std::fflush(stdout);
    }
  }
  std::sort(errors.begin(), errors.end());
  if (!json) {
    std::printf("median error %.1f %% (goal %d), worst %.1f %% (goal %d) over %zu configurations\n",
                errors[errors.size() / 2] * 100, updates ? 10 : 7, errors.back() * 100, updates ? 25 : 20,
                errors.size());
  }
  return 0;
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) { return penstock::tools::run(argc, argv); }
