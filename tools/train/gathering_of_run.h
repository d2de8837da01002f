// Where the ranks of a run gather weights and add gradients up: on the devices that they compute on, by NCCL, where
// each has a CUDA device of its own; else in host memory. It changes no bit.
#pragma once

#include <span>
#include <string>

#include "runtime/engine/ranks/ranks.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// What a rank says of itself to the others.
struct DeviceOfRank {
  bool is_cuda = false;
  uint64_t identity = 0;  // another for each GPU, or part of one; alike on all ranks that compute on it; 0: unknown
  bool finds_nccl = false;
};

// Why the ranks share in host memory; empty: they share among their devices.
std::string why_in_host_memory(std::span<const DeviceOfRank> ranks, const engine::RankPlace& place,
                               const RankCodes& codes);

// Whether there is anything to choose: several ranks compute on GPUs.
bool may_gather_on_devices(const TrainingSettings& settings);

// Chooses for all ranks together. What was chosen and why, for the user.
Result<std::string> choose_gathering(TrainingSettings& settings, engine::Ranks& ranks);

}  // namespace penstock::tools
