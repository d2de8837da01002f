// The flags of `penstock plan`, and the forecast that they ask for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/plan/forecast.h"
#include "tools/plan/shape_solver.h"

namespace penstock::tools {

struct PlanFlags {
  std::string model, parameters;
  ShapeWish wish;
  std::string machine, budget;
  std::optional<uint64_t> ranks;
  uint64_t nodes = 1;
  double network_gbps = 0;  // 0: as the profile says
  std::string stage = "auto";
  bool quantized_weights = false, quantized_gradients = false;
  double flops = 0, host_gbps = 0;  // 0: as the profile says
  uint64_t tokens = 0, sequence = 0, micro_batches = 0;
  std::string optimizer = "adamw", moments = "fp32", activations = "auto", clip = "on";
  std::optional<Durability> durability;
  std::string space = "double";
  double strike_share = 0;
  bool update_only = false;
  std::optional<uint64_t> lora_rank;
  std::optional<std::string> base;
  bool advise = false;
  double step_time_s = 0, drive_life_days = 0;  // aims; 0: none
  std::string gantt, trace;
  bool force = false;
};

// Refuses what cannot be followed, or does not go together, with the flag that is to blame. What no flag says is the
// machine's or usual.
Result<ForecastRequest> request_of(const PlanFlags& flags);

}  // namespace penstock::tools
