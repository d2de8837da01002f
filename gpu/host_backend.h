// HostBackend is a device in host memory. Streams are threads, copies are memcpy, and kernels are the host build of the
// same functions that a GPU runs.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "gpu/backend.h"
#include "gpu/host_device.h"
#include "gpu/host_stream.h"

namespace penstock::gpu {

class HostBackend : public Backend {
 public:
  explicit HostBackend(const HostDeviceOptions& options);
  ~HostBackend() override;

  Result<std::span<std::byte>> reserve(uint64_t bytes) override;
  Result<std::span<std::byte>> pinned(uint64_t bytes) override;
  Status register_host(std::span<std::byte>) override { return Status(); }
  bool copies_unregistered() const override { return true; }
  Result<Stream> make_stream() override;
  Result<Event> record(Stream stream) override;
  Status make_wait(Stream stream, const Event& event) override;
  Result<bool> reached(const Event& event) override;
  Status copy(std::byte* target, const std::byte* source, uint64_t bytes, CopyWay way, Stream stream) override;
  Status call(void (*function)(void*), void* data, Stream stream) override;
  Status launch(const Kernel& kernel, Stream stream) override;
  Status enter_thread() override { return Status(); }
  Status finish() override;
  const DeviceFacts& facts() const override { return facts_; }

 private:
  // One direction of the simulated link: its rate, and until when it is busy. Only the stream that copies in this
  // direction touches the latter.
  struct Link {
    uint64_t bytes_per_s = 0;
    std::chrono::steady_clock::time_point busy_until;
  };

  void put(Stream stream, std::function<void()> work);
  void carry(std::byte* target, const std::byte* source, uint64_t bytes, Link* link);

  DeviceFacts facts_;
  Link to_device_, to_host_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<HostStream>> streams_;
};

}  // namespace penstock::gpu
