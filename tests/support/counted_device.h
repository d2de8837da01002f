// CountedDevice passes all on to another device, and counts the bytes that copies move, by their way.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "tiering/device.h"

namespace penstock::test {

struct CopiedBytes {
  std::atomic<uint64_t> up = 0, down = 0, within = 0;
};

class CountedDevice final : public Device {
 public:
  // `copied` outlives it.
  CountedDevice(std::unique_ptr<Device> inner, CopiedBytes& copied) : inner_(std::move(inner)), copied_(copied) {}

  std::span<std::byte> memory() override { return inner_->memory(); }
  HostRegistration register_host_memory(std::span<std::byte> arena,
                                        std::span<const std::span<std::byte>> windows) override {
    return inner_->register_host_memory(arena, windows);
  }
  using Device::copy;
  Copy copy(std::span<const CopyRun> runs, Lease source, Lease target, std::span<const Event> after) override {
    const bool is_up = source.tier() != Tier::device, is_down = target.tier() != Tier::device;
    for (const CopyRun& run : runs) {
      (is_up ? copied_.up : is_down ? copied_.down : copied_.within) += run.length_bytes;
    }
    return inner_->copy(runs, std::move(source), std::move(target), after);
  }
  Stream kernel_stream() override { return inner_->kernel_stream(); }
  Status launch(const Kernel& kernel, Stream stream) override { return inner_->launch(kernel, stream); }
  Result<Event> record(Stream stream) override { return inner_->record(stream); }
  Status make_wait(Stream stream, const Event& event) override { return inner_->make_wait(stream, event); }
  Result<bool> reached(const Event& event) override { return inner_->reached(event); }
  Status wake_at(const Event& event) override { return inner_->wake_at(event); }
  Status enter_thread() override { return inner_->enter_thread(); }
  size_t poll() override { return inner_->poll(); }
  size_t wait(std::chrono::nanoseconds timeout) override { return inner_->wait(timeout); }
  int completion_fd() const override { return inner_->completion_fd(); }
  const DeviceFacts& facts() const override { return inner_->facts(); }
  std::string description() const override { return inner_->description(); }
  void drive_until_ended(const TransferState& state) override { inner_->drive_until_ended(state); }

 private:
  const std::unique_ptr<Device> inner_;
  CopiedBytes& copied_;
};

}  // namespace penstock::test
