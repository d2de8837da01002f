// A kernel is written as a struct with its parameters and one function that is compiled for host and GPU alike. A GPU
// runs it for all threads of all blocks in parallel. The host (host_kernels.cpp) runs the same function in loops over
// blocks, phases and threads, so its tests cover everything of a kernel except its launch.
//
//   struct Example {
//     static constexpr uint32_t kPhases = 2;   // the threads of a block synchronize between phases
//     struct Shared { float sums[kThreads]; }; // one per block
//     struct Local { float value; };           // one per thread, kept from phase to phase
//     PENSTOCK_HOST_DEVICE uint64_t blocks() const;
//     PENSTOCK_HOST_DEVICE void run(uint32_t phase, uint64_t block, uint32_t thread, Shared&, Local&) const;
//   };
#pragma once

#include <cstddef>

#include "tiering/arithmetic/host_device.h"
#include "tiering/device_kernels.h"

// Stands before loops over a thread's Local, so that it stays in registers.
#if defined(__CUDACC__)
#define PENSTOCK_UNROLL _Pragma("unroll")
#else
#define PENSTOCK_UNROLL
#endif

namespace penstock::gpu {

constexpr uint32_t kThreads = 256;

// A packet is four elements: 16 B of fp32 or 8 B of bf16, so that the accesses of a warp are whole contiguous sectors
// in every format.
constexpr uint32_t kPacket = 4;

// A light kernel has little in flight per packet, so each thread loads several before it stores any. 256 threads x 4
// packets x 8 B of bf16 = 8 KiB a block, 64 KiB a multiprocessor: above the 30 KiB that 4.8 TB/s at 0.8 us ask for.
constexpr uint32_t kPacketsPerThread = 4;
constexpr uint64_t kElementsPerBlock = uint64_t{kThreads} * kPacket * kPacketsPerThread;

// For kernels without shared or local values.
struct Nothing {};

PENSTOCK_HOST_DEVICE uint64_t blocks_for(uint64_t elements) {
  return (elements + kElementsPerBlock - 1) / kElementsPerBlock;
}

// Index of the first element of a thread's k-th packet: neighbours in a warp have neighbouring packets.
PENSTOCK_HOST_DEVICE uint64_t packet_index(uint64_t block, uint32_t thread, uint32_t k) {
  return block * kElementsPerBlock + (uint64_t{k} * kThreads + thread) * kPacket;
}

PENSTOCK_HOST_DEVICE uint32_t packet_length(uint64_t index, uint64_t elements) {
  if (index >= elements) return 0;
  uint64_t left = elements - index;
  return left < kPacket ? static_cast<uint32_t>(left) : kPacket;
}

}  // namespace penstock::gpu
