#include "runtime/trainer/compute_device.h"

#include <cstdlib>

namespace penstock::trainer {
namespace {

using Kind = ComputeDevice::Kind;

// Without a GPU, a budget alone asks for the host device.
Kind without_gpu(const TrainConfig& config) { return config.device_budget.empty() ? Kind::cpu : Kind::host; }

ComputeDevice first_usable(const TrainConfig& config, uint32_t ranks, const CudaUsable& cuda_usable) {
  if (ranks > 1) return {.kind = without_gpu(config), .why = "ranks compute on GPUs where the config says so"};
  if (!cuda_usable) return {.kind = without_gpu(config)};
  const Status usable = cuda_usable(0);
  if (usable.ok()) return {.kind = Kind::cuda, .why = "the first GPU"};
  return {.kind = without_gpu(config), .why = usable.message()};
}

}  // namespace

std::string name_of(const ComputeDevice& device) {
  switch (device.kind) {
    case Kind::cpu:
      return "the CPU, in place";
    case Kind::host:
      return "the host device";
    case Kind::cuda:
      return text("cuda:", device.index);
  }
  return "";
}

Result<ComputeDevice> choose_device(const TrainConfig& config, const engine::RankPlace& place,
                                    const CudaUsable& cuda_usable) {
  if (config.device == "auto") return first_usable(config, place.ranks, cuda_usable);
  if (config.device == "cpu") {
    if (config.device_budget.empty()) return ComputeDevice{};
    return Status(Code::kUsage,
                  text("config: penstock.device_budget: ", config.device_budget,
                       ": penstock.device is cpu, which computes in place and has no memory of its own"),
                  "leave out the budget, or \"device\": \"host\"");
  }
  if (config.device == "host") {
    if (!config.device_budget.empty()) return ComputeDevice{.kind = Kind::host};
    return Status(Code::kUsage,
                  "config: penstock.device: host: penstock.device_budget does not say how much memory it has",
                  "\"device_budget\": \"1GiB\"");
  }
  const size_t colon = config.device.find(':');
  ComputeDevice device{.kind = Kind::cuda, .index = static_cast<int>(place.rank_here())};
  if (colon != std::string::npos) device.index = std::atoi(config.device.c_str() + colon + 1);
  if (!cuda_usable) return ComputeDevice{};
  const Status usable = cuda_usable(device.index);
  if (usable.ok()) return device;
  const std::string which = text("config: penstock.device: ", config.device);
  return usable.within(place.ranks > 1 ? text(which, ": rank ", place.rank) : which);
}

}  // namespace penstock::trainer
