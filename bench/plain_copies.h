// The simplest way to copy, for comparison with a Device: a loop over one pair of buffers, without any bookkeeping.
#pragma once

#include <cstring>
#include <string>

#ifdef PENSTOCK_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

#include "gpu/host_device.h"
#include "tiering/device.h"

namespace penstock::bench {

enum class Way { in, out, both };

class PlainCopies {
 public:
  virtual ~PlainCopies() = default;
  virtual std::string name() const = 0;
  // Copies `pieces` times piece_bytes in each direction asked for, and waits for the end.
  virtual void run(Way way, uint64_t pieces) = 0;
};

class PlainMemcpy : public PlainCopies {
 public:
  explicit PlainMemcpy(uint64_t piece_bytes) : a_(Buffer::on_heap(piece_bytes)), b_(Buffer::on_heap(piece_bytes)) {
    std::memset(a_.data(), 1, piece_bytes);
    std::memset(b_.data(), 2, piece_bytes);
  }
  std::string name() const override { return "memcpy loop"; }
  void run(Way way, uint64_t pieces) override {
    for (uint64_t i = 0; i < (way == Way::both ? 2 : 1) * pieces; ++i) {
      std::memcpy(b_.data(), a_.data(), a_.size_bytes());
      asm volatile("" ::"r"(b_.data()) : "memory");
    }
  }

 private:
  Buffer a_, b_;
};

#ifdef PENSTOCK_HAS_CUDA
class PlainCuda : public PlainCopies {
 public:
  explicit PlainCuda(uint64_t piece_bytes) : piece_bytes_(piece_bytes) {
    for (int way = 0; way < 2; ++way) {
      expect(cudaHostAlloc(&host_[way], piece_bytes, cudaHostAllocDefault));
      expect(cudaMalloc(&device_[way], piece_bytes));
      expect(cudaStreamCreateWithFlags(&streams_[way], cudaStreamNonBlocking));
    }
  }
  ~PlainCuda() override {
    for (int way = 0; way < 2; ++way) {
      cudaStreamDestroy(streams_[way]);
      cudaFree(device_[way]);
      cudaFreeHost(host_[way]);
    }
  }
  std::string name() const override { return "cudaMemcpyAsync loop"; }
  void run(Way way, uint64_t pieces) override {
    for (uint64_t i = 0; i < pieces; ++i) {
      if (way != Way::out) {
        expect(cudaMemcpyAsync(device_[0], host_[0], piece_bytes_, cudaMemcpyHostToDevice, streams_[0]));
      }
      if (way != Way::in) {
        expect(cudaMemcpyAsync(host_[1], device_[1], piece_bytes_, cudaMemcpyDeviceToHost, streams_[1]));
      }
    }
    for (cudaStream_t stream : streams_) expect(cudaStreamSynchronize(stream));
  }

 private:
  static void expect(cudaError_t error) { CHECK(error == cudaSuccess, cudaGetErrorString(error)); }

  const uint64_t piece_bytes_;
  void* host_[2] = {};
  void* device_[2] = {};
  cudaStream_t streams_[2] = {};
};
#endif

inline std::unique_ptr<PlainCopies> make_plain_copies([[maybe_unused]] bool is_host, uint64_t piece_bytes) {
#ifdef PENSTOCK_HAS_CUDA
  if (!is_host) return std::make_unique<PlainCuda>(piece_bytes);
#endif
  return std::make_unique<PlainMemcpy>(piece_bytes);
}

}  // namespace penstock::bench
