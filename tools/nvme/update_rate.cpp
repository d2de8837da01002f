#include "tools/nvme/update_rate.h"

#include <algorithm>
#include <chrono>

#include "tools/nvme/statistics.h"
#include "tools/nvme/update_load.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kElements = kBlockElements * 8;
constexpr int kRounds = 5;

}  // namespace

Result<double> measure_update_gbps(const StateForm& form, uint32_t threads, uint64_t memory_bytes) {
  PENSTOCK_TRY_ASSIGN(arena, cpu_optim::UpdateWorkers::make({.threads = threads, .cpus = {}}));
  UpdateLoad load(form, kElements, std::min(memory_bytes, kUpdateMemoryBytes));
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    auto begin = std::chrono::steady_clock::now();
    for (uint64_t tile = 0; tile < load.tiles(); ++tile) arena->run(load.job(tile));
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  seconds.erase(seconds.begin());  // the first touches memory
  return static_cast<double>(load.tiles() * load.traffic_bytes()) / median(seconds) / 1e9;
}

}  // namespace penstock::tools
