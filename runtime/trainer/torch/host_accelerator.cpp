#include "runtime/trainer/torch/host_accelerator.h"

#include <c10/core/Device.h>
#include <torch/version.h>

#include <cstring>

#include "runtime/trainer/torch/tensor_memory.h"
#include "tiering/check.h"

namespace penstock::trainer {

c10::Device HostAccelerator::device() const { return c10::Device(c10::kCPU); }

Status HostAccelerator::copy(std::span<std::byte> target, std::span<const std::byte> source) {
  CHECK(target.size() == source.size(), "a copy of ", source.size(), " B into ", target.size(), " B");
  std::memcpy(target.data(), source.data(), source.size());
  return Status();
}

Accelerator::TensorBytes HostAccelerator::tensor_bytes() const {
  const TensorMemory& memory = TensorMemory::get();
  return {.live = memory.live_bytes(), .peak = memory.peak_bytes(), .in_host = memory.touched_bytes()};
}

void HostAccelerator::restart_tensor_peak() { TensorMemory::get().reset_peak(); }
void HostAccelerator::limit_tensors(uint64_t bytes) { TensorMemory::get().set_limit(bytes); }
void HostAccelerator::give_back_tensors() { TensorMemory::get().give_back(); }

std::string HostAccelerator::description() const { return "the CPU, torch " TORCH_VERSION; }

}  // namespace penstock::trainer
