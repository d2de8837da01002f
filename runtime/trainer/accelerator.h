// Accelerator is what a training step computes on: where its tensors lie, the stream that orders what is computed, and
// the memory that LibTorch has beside the engine's.
//
// Weights and what is put lie in the memory of the engine's device, or in the host's where the engine computes in
// place; all other tensors in LibTorch's. What is computed is put on stream(), in the order of the calls, and the host
// goes on: where a stream can wait, the host does not. So what is on the stream before may still read what is freed
// here, and reads nothing that comes after.
//
// There is one at a time. Made, used and destroyed by one thread, for which LibTorch computes here meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tiering/device.h"

namespace c10 {
struct Device;
}

namespace penstock::trainer {

class Accelerator {
 public:
  static constexpr uint64_t kNoLimit = UINT64_MAX;

  virtual ~Accelerator() = default;

  // As LibTorch names it. Tensors are there.
  virtual c10::Device device() const = 0;
  // As the engine's device knows it; the null stream where this thread itself computes.
  virtual Stream stream() const = 0;

  // Puts a copy on the stream. Both runs are in the memory that tensors and weights lie in.
  virtual Status copy(std::span<std::byte> target, std::span<const std::byte> source) = 0;
  // Waits until everything on the stream has ended.
  virtual Status finish() = 0;

  // Of tensors, those of weights and of what is put not counted.
  struct TensorBytes {
    uint64_t live = 0;
    uint64_t peak = 0;     // the most that was live since restart_tensor_peak()
    uint64_t in_host = 0;  // at most so much of the process's memory is theirs
  };
  virtual TensorBytes tensor_bytes() const = 0;
  virtual void restart_tensor_peak() = 0;
  // Tensors beyond it are refused, as LibTorch refuses what it has no memory for.
  virtual void limit_tensors(uint64_t bytes) = 0;
  // Memory that no tensor has goes back to the system.
  virtual void give_back_tensors() = 0;

  // What LibTorch may hold beside tensors of so many bytes, between one another.
  virtual uint64_t left_between_tensors(uint64_t bytes) const = 0;
  // Of memory of the device's own, what nobody has taken yet; 0 where it has none but the host's.
  virtual uint64_t free_bytes() const = 0;

  // What really computes, for people: "the CPU, torch 2.13.0".
  virtual std::string description() const = 0;
};

}  // namespace penstock::trainer
