// The devices of this project that tests run over: the host's, and CUDA's first where there is one.
#pragma once

#include "gpu/cuda_device.h"
#include "gpu/host_device.h"
#include "tests/contracts/device_case.h"

namespace penstock {

// Why there is no CUDA device here; empty where there is one.
inline std::string absent_cuda() {
  Status status = gpu::usable(gpu::find_cuda(), 0);
  return status.ok() ? "" : status.message();
}

inline DeviceCase host_case() {
  return {"plain", [](uint64_t arena_bytes) { return gpu::open_host_device({.arena_bytes = arena_bytes}); }};
}

inline DeviceCase cuda_case() {
  return {"first", [](uint64_t arena_bytes) { return gpu::open_cuda_device({.index = 0, .arena_bytes = arena_bytes}); },
          absent_cuda};
}

}  // namespace penstock
