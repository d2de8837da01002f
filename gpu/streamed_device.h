// StreamedDevice implements Device over any Backend. It holds the leases of copies, orders the copies, learns through
// an eventfd when they end, and stages unregistered host memory through a small pinned buffer.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/backend.h"

namespace penstock::gpu {

class StreamedDevice : public Device {
 public:
  // Creates the arena, the streams and the eventfd, or says which of them was refused.
  static Result<std::unique_ptr<Device>> open(std::unique_ptr<Backend> backend, uint64_t arena_bytes);
  ~StreamedDevice() override;

  std::span<std::byte> memory() override { return memory_; }
  HostRegistration register_host_memory(std::span<std::byte> arena,
                                        std::span<const std::span<std::byte>> windows) override;
  using Device::copy;
  Copy copy(std::span<const CopyRun> runs, Lease source, Lease target, std::span<const Event> after) override;
  Stream kernel_stream() override { return kernel_stream_; }
  Status launch(const Kernel& kernel, Stream stream) override { return backend_->launch(kernel, stream); }
  Result<Event> record(Stream stream) override { return backend_->record(stream); }
  Status make_wait(Stream stream, const Event& event) override { return backend_->make_wait(stream, event); }
  Result<bool> reached(const Event& event) override { return backend_->reached(event); }
  Status enter_thread() override { return backend_->enter_thread(); }
  Status wake_at(const Event& event) override;
  size_t poll() override;
  size_t wait(std::chrono::nanoseconds timeout) override;
  int completion_fd() const override { return completion_fd_; }
  const DeviceFacts& facts() const override { return backend_->facts(); }
  std::string description() const override;
  void drive_until_ended(const TransferState& state) override;

 private:
  // One part of a staged copy: a memcpy on the host between the caller's memory and the pinned buffer.
  struct HostPart {
    std::byte* target;
    const std::byte* source;
    uint64_t bytes;
  };
  struct Pending {
    std::shared_ptr<TransferState> state;
    Lease source;
    Event done;
    Status refused;  // why only a part was issued
    std::deque<HostPart> host_parts;
  };
  // The copies of one direction. Copies on one stream end in order, so only the first pending one is queried.
  struct CopyQueue {
    Stream copies;
    Stream signals;  // carries the wake-ups, so that no copy waits until the host is told about the previous one
    std::span<std::byte> staging;
    std::deque<Pending> pending;
  };

  explicit StreamedDevice(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  Status take(uint64_t arena_bytes);
  bool is_direct(std::span<const std::byte> host) const;
  Status issue(std::span<const CopyRun> runs, Pending& pending, CopyQueue& queue, CopyWay way,
               std::span<const Event> after);
  Status issue_staged(std::byte* target, const std::byte* source, uint64_t bytes, Pending& pending, CopyQueue& queue,
                      CopyWay way);
  Status wake_up_at(const Event& done, Stream signals);
  Copy end_now(Pending pending, const Status& unrecorded);
  size_t end_ready(CopyQueue& queue);
  bool idle() const { return to_device_.pending.empty() && to_host_.pending.empty(); }

  std::unique_ptr<Backend> backend_;
  std::span<std::byte> memory_;
  int completion_fd_ = -1;
  Stream kernel_stream_;
  std::optional<Stream> marks_;  // carries the wake-ups that were asked for
  CopyQueue to_device_, to_host_;
  std::vector<std::span<std::byte>> registered_;
  std::string registration_text_ = "no host memory registered";
};

}  // namespace penstock::gpu
