// Backend is the few primitives that StreamedDevice needs. CudaBackend forwards each to the CUDA runtime, HostBackend
// executes it with threads. Everything above (leases, ordering, completions, staging, refusals) is the same code for
// both, and runs in every test.
#pragma once

#include <cstdint>
#include <span>

#include "tiering/device.h"

namespace penstock::gpu {

enum class CopyWay { host_to_device, device_to_host, device_to_device };

// Called by one thread, except launch(), record(), make_wait(), reached() and enter_thread(), which any thread may
// call. The destructor waits for everything that was issued and frees everything that was handed out.
class Backend {
 public:
  virtual ~Backend() = default;

  // Allocates the arena. Called once. The address is a multiple of kAlignmentBytes.
  virtual Result<std::span<std::byte>> reserve(uint64_t bytes) = 0;
  // Allocates host memory that the copy engines reach.
  virtual Result<std::span<std::byte>> pinned(uint64_t bytes) = 0;
  // Makes the caller's memory reachable by the copy engines.
  virtual Status register_host(std::span<std::byte> memory) = 0;
  // Whether copies from and to unregistered memory are asynchronous too.
  virtual bool copies_unregistered() const = 0;

  virtual Result<Stream> make_stream() = 0;
  virtual Result<Event> record(Stream stream) = 0;
  virtual Status make_wait(Stream stream, const Event& event) = 0;
  virtual Result<bool> reached(const Event& event) = 0;

  virtual Status copy(std::byte* target, const std::byte* source, uint64_t bytes, CopyWay way, Stream stream) = 0;
  // Calls `function(data)` in stream order, on a thread of the backend. The function must not call the backend.
  virtual Status call(void (*function)(void*), void* data, Stream stream) = 0;
  virtual Status launch(const Kernel& kernel, Stream stream) = 0;
  // See Device.
  virtual Status enter_thread() = 0;
  // Blocks until everything that was issued has ended.
  virtual Status finish() = 0;

  virtual const DeviceFacts& facts() const = 0;
};

}  // namespace penstock::gpu
