// A backend that refuses when told to: how StreamedDevice behaves over a CUDA runtime that fails, without one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/host_backend.h"

namespace penstock::gpu {

// A host backend whose copy engines reach registered and pinned memory only, and whose calls can be made to fail.
class RefusingBackend : public HostBackend {
 public:
  struct Refusals {
    uint64_t register_at_most_bytes = ~0ull;  // as a memlock limit does
    bool nothing_pinned = false;
    int streams = 1000;      // so many are made
    int copies = 1'000'000;  // so many are issued
    int records = 1'000'000;
    int calls = 1'000'000;
    bool lost = false;  // a query answers that the device is gone
  };

  explicit RefusingBackend(std::shared_ptr<Refusals> refusals) : HostBackend({}), refusals_(std::move(refusals)) {}

  Status register_host(std::span<std::byte> memory) override {
    if (memory.size() > refusals_->register_at_most_bytes) return refusal("cudaErrorMemoryAllocation");
    reachable_.push_back(memory);
    return Status();
  }
  bool copies_unregistered() const override { return false; }
  Result<std::span<std::byte>> pinned(uint64_t bytes) override {
    if (refusals_->nothing_pinned) return refusal("cudaHostAlloc");
    Result<std::span<std::byte>> memory = HostBackend::pinned(bytes);
    reachable_.push_back(*memory);
    return memory;
  }
  Result<std::span<std::byte>> reserve(uint64_t bytes) override {
    Result<std::span<std::byte>> memory = HostBackend::reserve(bytes);
    if (memory.ok()) reachable_.push_back(*memory);
    return memory;
  }
  Result<Stream> make_stream() override {
    if (refusals_->streams-- <= 0) return refusal("cudaStreamCreate");
    return HostBackend::make_stream();
  }
  Result<Event> record(Stream stream) override {
    if (refusals_->records-- <= 0) return refusal("cudaEventRecord");
    return HostBackend::record(stream);
  }
  Result<bool> reached(const Event& event) override {
    if (refusals_->lost) return refusal("cudaErrorIllegalAddress");
    return HostBackend::reached(event);
  }
  Status call(void (*function)(void*), void* data, Stream stream) override {
    if (refusals_->calls-- <= 0) return refusal("cudaLaunchHostFunc");
    return HostBackend::call(function, data, stream);
  }
  Status copy(std::byte* target, const std::byte* source, uint64_t bytes, CopyWay way, Stream stream) override {
    if (refusals_->copies-- <= 0) return refusal("cudaMemcpyAsync");
    EXPECT_TRUE(is_reachable(target, bytes) && is_reachable(source, bytes)) << "a copy engine went astray";
    return HostBackend::copy(target, source, bytes, way, stream);
  }

 private:
  static Status refusal(const char* what) { return Status(Code::kEnvironment, what); }
  bool is_reachable(const std::byte* memory, uint64_t bytes) const {
    return std::any_of(reachable_.begin(), reachable_.end(), [&](std::span<std::byte> span) {
      return memory >= span.data() && memory + bytes <= span.data() + span.size();
    });
  }

  std::shared_ptr<Refusals> refusals_;
  std::vector<std::span<std::byte>> reachable_;
};

}  // namespace penstock::gpu
