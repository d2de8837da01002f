// CudaBackend implements each primitive by one or two calls of the CUDA runtime, and puts their errors into words.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "gpu/backend.h"

namespace penstock::gpu {

class CudaEventPool;

class CudaBackend : public Backend {
 public:
  // REQUIRES: usable() is ok for the device.
  static Result<std::unique_ptr<Backend>> open(int index);
  ~CudaBackend() override;

  Result<std::span<std::byte>> reserve(uint64_t bytes) override;
  Result<std::span<std::byte>> pinned(uint64_t bytes) override;
  Status register_host(std::span<std::byte> memory) override;
  bool copies_unregistered() const override { return facts_.reads_pageable_memory; }
  Result<Stream> make_stream() override;
  Result<Event> record(Stream stream) override;
  Status make_wait(Stream stream, const Event& event) override;
  Result<bool> reached(const Event& event) override;
  Status copy(std::byte* target, const std::byte* source, uint64_t bytes, CopyWay way, Stream stream) override;
  Status call(void (*function)(void*), void* data, Stream stream) override;
  Status launch(const Kernel& kernel, Stream stream) override;
  Status enter_thread() override;
  Status finish() override;
  const DeviceFacts& facts() const override { return facts_; }

 private:
  explicit CudaBackend(int index) : index_(index) {}
  Status learn_facts();

  const int index_;
  DeviceFacts facts_;
  std::shared_ptr<CudaEventPool> events_;
  std::byte* arena_ = nullptr;  // as allocated; reserve() returns the next aligned address
  std::vector<std::byte*> pinned_;
  std::vector<std::byte*> registered_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace penstock::gpu
