// ComputeDevice is what a run computes on: what its config asks for, held against what there is.
#pragma once

#include <functional>
#include <string>

#include "runtime/engine/ranks/rank_place.h"
#include "runtime/trainer/config/train_config.h"
#include "tiering/status.h"

namespace penstock::trainer {

struct ComputeDevice {
  enum class Kind : uint8_t {
    cpu,   // in place, in the engine's host memory
    host,  // the CPU, over the memory of the host device
    cuda,
  };
  Kind kind = Kind::cpu;
  int index = 0;         // of CUDA's devices
  std::string why = {};  // this one, where the config leaves it open

  // Whether the engine has a device with memory of its own.
  bool has_memory() const { return kind != Kind::cpu; }
};

std::string name_of(const ComputeDevice& device);

// Whether a training step can be computed on CUDA's device `index`: ok, or what was found and what can be done. None:
// nothing will be computed, and a GPU counts as the CPU.
using CudaUsable = std::function<Status(int index)>;

// Of several ranks, "cuda" is a GPU for each of a host's, in their order; one with a number is the same for all that
// know it by that number. Refuses a device that cannot be used, and a budget that no device or too little is said
// about.
Result<ComputeDevice> choose_device(const TrainConfig& config, const engine::RankPlace& place,
                                    const CudaUsable& cuda_usable);

}  // namespace penstock::trainer
