// What a machine computes, updates and copies a second: the rates of a profile that are not those of drives.
#pragma once

#include <optional>
#include <string>

#include "tiering/plan/machine_profile.h"
#include "tools/doctor/copy_rates.h"

namespace penstock::tools {

struct ComputeRate {
  double flops = 0;  // the median of several rounds
  double flops_least = 0, flops_most = 0;
};

struct MeasuredRates {
  std::optional<ComputeRate> compute;  // forward and backward of a transformer's block in bf16
  std::string compute_unmeasured;      // why there is none
  double update_gbps = 0;
  uint32_t devices = 0;  // that CUDA can use
  uint64_t device_bytes = 0;
  std::optional<CopyRates> copies;
  double device_update_gbps = 0;  // on a device
};

// Takes some 20 seconds. Compute is measured where LibTorch is in the build, on the GPU where there is one.
Result<MeasuredRates> measure_rates();

// What was not measured stays as it was.
void put_rates(MachineProfile& profile, const MeasuredRates& rates);

}  // namespace penstock::tools
