// RankDevice is what a rank that computes on a device has there besides its engine's arena: room for whole units'
// weights, which the ranks gather in host memory, and for a gradient on its way there. Copies follow what is on the
// trainer's stream, and the stream follows them.
//
// Called by one thread at a time. A stream is the trainer's, on this device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/device_memory.h"

namespace penstock::engine {

class RankDevice {
 public:
  struct Bytes {
    uint64_t weights = 0;
    uint64_t gradient = 0;
    uint64_t all() const { return weights + gradient; }
  };
  // `host`: what copies go to and come from; outlives it.
  static Result<std::unique_ptr<RankDevice>> open(const MakeDevice& make, const Bytes& bytes,
                                                  std::span<std::byte> host);
  // Waits until nothing reads the weights any more.
  ~RankDevice();

  std::span<std::byte> weights(uint64_t offset_bytes, uint64_t bytes) const {
    return device_->memory().subspan(offset_bytes, bytes);
  }

  // Bytes of the device's memory and of the host's, as many.
  struct Run {
    std::span<std::byte> device, host;
  };
  struct Download {
    std::span<const std::byte> device;
    std::span<std::byte> host;
  };
  // Returns when the host has what the device's runs are when the stream comes to here.
  Status download(std::span<const Download> runs, Stream stream);
  // The same of a gradient; what is put on the stream from now on may overwrite `values`.
  Status download_gradient(std::span<const std::byte> values, Dtype dtype, std::span<std::byte> host, Stream stream);

  // What is put on the stream from now on finds in the weights what the host has. Nobody writes the host's runs before
  // finish_uploads().
  Status upload(const std::vector<Run>& runs, Stream stream);
  Status finish_uploads();
  // What has read the weights is on the stream: they are filled anew behind it.
  Status end_pass(Stream stream);

 private:
  RankDevice(const Bytes& bytes, std::unique_ptr<Device> device) : bytes_(bytes), device_(std::move(device)) {}

  const Bytes bytes_;
  const std::unique_ptr<Device> device_;
  std::vector<Transfer> uploads_;
  std::vector<Event> readers_;  // of the weights
};

}  // namespace penstock::engine
