#include "runtime/trainer/torch/stream_accelerator.h"

#include "runtime/trainer/torch/autograd.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include "runtime/trainer/torch/refusals.h"
#include "runtime/trainer/torch/tensors.h"
#include "tiering/check.h"

namespace penstock::trainer {

class StreamAccelerator::OwnStream {
 public:
  OwnStream(const c10::Stream& stream, void* handle) : stream_(stream), handle_(handle), is_current_(stream) {}

  const c10::Stream& of_torch() const { return stream_; }
  void* handle() const { return handle_; }

 private:
  const c10::Stream stream_;
  void* const handle_;
  const c10::StreamGuard is_current_;
};

Result<std::shared_ptr<StreamAccelerator::OwnStream>> StreamAccelerator::take_stream(const c10::Device& device) {
  using Taken = Result<std::shared_ptr<OwnStream>>;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11
  return without_exceptions(nullptr, [&]() -> Taken {
    const c10::impl::VirtualGuardImpl torch(device.type());
    const c10::Stream stream = torch.getStreamFromGlobalPool(device);
    return std::make_shared<OwnStream>(stream, stream.native_handle());
  });
#else
  return Taken(Status(Code::kEnvironment,
                      text(device.str(), ": this build has torch " TORCH_VERSION ", whose streams have no handle"),
                      "build with torch 2.11 or newer"));
#endif
}

StreamAccelerator::~StreamAccelerator() { (void)finish(); }

c10::Device StreamAccelerator::device() const { return stream_->of_torch().device(); }
Stream StreamAccelerator::stream() const { return {stream_->handle()}; }

// Autograd calls from a thread of its own.
Status StreamAccelerator::copy(std::span<std::byte> target, std::span<const std::byte> source) {
  CHECK(target.size() == source.size(), "a copy of ", source.size(), " B into ", target.size(), " B");
  return without_exceptions(nullptr, [&] {
    const c10::StreamGuard here(stream_->of_torch());
    tensor_over(target, device()).copy_(tensor_over(source, device()), /*non_blocking=*/true);
    return Status();
  });
}

Status StreamAccelerator::finish() {
  return without_exceptions(nullptr, [&] {
    stream_->of_torch().synchronize();
    return Status();
  });
}

Accelerator::TensorBytes StreamAccelerator::tensor_bytes() const {
  const auto stats = c10::getDeviceAllocator(device().type())->getDeviceStats(device().index());
  const auto& bytes = stats.allocated_bytes.front();  // of all pools together
  return {.live = static_cast<uint64_t>(bytes.current), .peak = static_cast<uint64_t>(bytes.peak), .in_host = 0};
}

void StreamAccelerator::restart_tensor_peak() {
  c10::getDeviceAllocator(device().type())->resetPeakStats(device().index());
}

void StreamAccelerator::give_back_tensors() { c10::getDeviceAllocator(device().type())->emptyCache(); }

// LibTorch takes runs of 2 and 20 MiB, and splits the larger ones.
uint64_t StreamAccelerator::left_between_tensors(uint64_t bytes) const { return 64 * kMiB + bytes / 4; }

}  // namespace penstock::trainer
