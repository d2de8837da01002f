#include "tools/doctor/measured_rates.h"

#include <nlohmann/json.hpp>

#include "gpu/cuda_device.h"
#include "tools/doctor/device_update_rate.h"
#include "tools/nvme/profile_file.h"
#include "tools/nvme/update_rate.h"
#include "tools/penstock/train_start.h"
#include "tools/system/subprocess.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kCopyBytes = 256 * kMiB;
constexpr int kCopyRounds = 5;

// LibTorch computes in a program of its own. Where there are GPUs, what the CPU computes is no rate of theirs.
Result<ComputeRate> measure_compute(bool has_gpus) {
  PENSTOCK_TRY_ASSIGN(trainer, trainer_path("doctor --measure"));
  let_trainer_threads_wait();
  PENSTOCK_TRY_ASSIGN(printed, run_program({trainer, "measure", "--json"}));
  const auto json = nlohmann::json::parse(printed, nullptr, /*allow_exceptions=*/false);
  auto rate = [&](const char* key) { return json.is_object() ? json.value(key, 0.0) : 0.0; };
  if (has_gpus && !(json.is_object() && json.value("on_gpu", false))) {
    return Status(Code::kEnvironment,
                  "this LibTorch has no CUDA, so the GPU was not measured; `penstock plan --flops` takes its rate");
  }
  const ComputeRate measured{rate("device_flops"), rate("device_flops_least"), rate("device_flops_most")};
  if (measured.flops > 0) return measured;
  return Status(Code::kEnvironment, text("doctor --measure: ", trainer, ": answered without a rate: ", printed));
}

Status measure_device(MeasuredRates& rates) {
  const gpu::CudaFindings found = gpu::find_cuda();
  if (!gpu::usable(found, 0).ok()) return {};
  PENSTOCK_TRY_ASSIGN(device, gpu::open_cuda_device({.arena_bytes = kCopyBytes}));
  rates.devices = static_cast<uint32_t>(found.devices);
  rates.device_bytes = device->facts().memory_bytes;
  PENSTOCK_TRY_ASSIGN(copies, measure_copies(*device, kCopyBytes, kCopyRounds));
  rates.copies = copies;
  PENSTOCK_TRY_ASSIGN(device_update_gbps, measure_device_updates(*device, kCopyRounds));
  rates.device_update_gbps = device_update_gbps;
  return {};
}

}  // namespace

Result<MeasuredRates> measure_rates() {
  MeasuredRates rates;
  PENSTOCK_TRY(measure_device(rates));
  PENSTOCK_TRY_ASSIGN(update_gbps, measure_update_gbps(StateForm(), 0));
  rates.update_gbps = update_gbps;
  const Result<ComputeRate> compute = measure_compute(rates.devices > 0);
  if (compute.ok()) {
    rates.compute = *compute;
  } else {
    rates.compute_unmeasured = compute.status().message();
  }
  return rates;
}

void put_rates(MachineProfile& profile, const MeasuredRates& rates) {
  put_host(profile, rates.update_gbps);
  profile.devices = rates.devices;
  if (rates.compute) profile.device_flops = rates.compute->flops;
  if (!rates.copies) return;
  profile.device_bytes = rates.device_bytes;
  if (rates.device_update_gbps > 0) profile.device_gbps = rates.device_update_gbps;
  profile.host_to_device_gbps = rates.copies->host_to_device_gbps;
  profile.device_to_host_gbps = rates.copies->device_to_host_gbps;
}

}  // namespace penstock::tools
