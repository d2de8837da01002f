// RankDevice is memory that a rank which computes on a device has there besides its engine's arena: for whole units'
// weights, for sums of gradients, or for a gradient on its way to host memory. Weights that the ranks gather in host
// memory are uploaded into it; those that they gather on devices come there by a collective, whose memory it is. Copies
// follow what is on the trainer's stream, and the stream follows them.
//
// Copies, and what waits, are called by one thread at a time; launch(), record(), end_pass(), readers() and make_wait()
// by any. A stream is the trainer's, on this device.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/engine/device_memory.h"

namespace penstock::engine {

class RankDevice {
 public:
  // `host`: what copies go to and come from; outlives it.
  static Result<std::unique_ptr<RankDevice>> open(const MakeDevice& make, uint64_t bytes, std::span<std::byte> host);
  // Over memory of the same device that others have taken, and that outlives it.
  static Result<std::unique_ptr<RankDevice>> open_over(const MakeDevice& make, std::span<std::byte> memory);
  // Waits until nothing reads its memory any more.
  ~RankDevice();

  std::span<std::byte> memory(uint64_t offset_bytes, uint64_t bytes) const {
    return memory_.subspan(offset_bytes, bytes);
  }

  // Bytes of the device's memory and of the host's, as many.
  struct Run {
    std::span<std::byte> device, host;
  };
  struct Download {
    std::span<const std::byte> device;
    std::span<std::byte> host;
  };
  // Returns when the host has what the device's runs are once `written` has been reached.
  Status download(std::span<const Download> runs, const Event& written);
  // The same of a gradient, when the stream comes to here; what is put on the stream from now on may overwrite
  // `values`.
  Status download_gradient(std::span<const std::byte> values, Dtype dtype, std::span<std::byte> host, Stream stream);

  // Fills the device's runs with what the host has, behind these readers; when that will have been done. Nobody writes
  // the host's runs before finish_uploads().
  Result<std::vector<Event>> upload(const std::vector<Run>& runs, std::span<const Event> readers);
  Status finish_uploads();

  // Fills runs of its memory with others of the device's, once `written` has been reached, and behind these readers.
  // Returns when that has been done, and when nothing of the readers still reads: anybody may write to it then.
  struct Within {
    std::span<const std::byte> source;
    std::span<std::byte> target;
  };
  Status copy_within(std::span<const Within> runs, const Event& written, std::span<const Event> readers);

  // Returns when it has been reached.
  Status wait_for(const Event& event) const;

  Status launch(const Kernel& kernel, Stream stream) { return device_->launch(kernel, stream); }
  Result<Event> record(Stream stream) { return device_->record(stream); }
  // What is put on the stream from now on finds what was uploaded.
  Status make_wait(Stream stream, const std::vector<Event>& uploaded);
  // What has read the memory, or written to it, is on the stream.
  Status end_pass(Stream stream);
  // All that has read it so far.
  std::vector<Event> readers() const;

 private:
  RankDevice(std::unique_ptr<Device> device, std::span<std::byte> memory, std::span<std::byte> host)
      : device_(std::move(device)),
        memory_(memory),
        arena_(Buffer::borrowed(Tier::device, memory)),
        host_(Buffer::borrowed(Tier::host, host)) {}
  void forget_those_that_have_read();

  const std::unique_ptr<Device> device_;
  const std::span<std::byte> memory_;
  Buffer arena_, host_;  // what is done with them the streams and the caller order
  std::vector<Transfer> uploads_;
  mutable std::mutex mutex_;
  std::vector<Event> readers_;  // GUARDED_BY(mutex_)
};

}  // namespace penstock::engine
