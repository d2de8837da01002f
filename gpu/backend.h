// Backend is what StreamedDevice is built on: the few primitives that a machine must have to be a device. The CUDA one
// forwards each to the CUDA runtime and the host one carries it out with threads, so that everything above this line
// (leases, ordering, completions, staging, refusals) is one code, and runs in every test.
#pragma once

#include <cstdint>
#include <span>

#include "tiering/device.h"

namespace penstock::gpu {

enum class Direction { host_to_device, device_to_host, device_to_device };

// One thread calls it, except launch(), record(), make_wait() and reached(), which any thread may call. Destroying it
// waits for what was issued and gives back all that it handed out.
class Backend {
 public:
  virtual ~Backend() = default;

  // The arena: called once. The address is a multiple of kSegmentAlignmentBytes.
  virtual Result<std::span<std::byte>> reserve(uint64_t bytes) = 0;
  // Host memory of the backend's own that its copy engines reach.
  virtual Result<std::span<std::byte>> pinned(uint64_t bytes) = 0;
  // Makes the caller's memory reachable for the copy engines.
  virtual Status register_host(std::span<std::byte> memory) = 0;
  // Whether copies from and to memory that nobody registered run beside the host as well.
  virtual bool copies_unregistered() const = 0;

  virtual Result<Stream> make_stream() = 0;
  virtual Result<Event> record(Stream stream) = 0;
  virtual Status make_wait(Stream stream, const Event& event) = 0;
  virtual Result<bool> reached(const Event& event) = 0;

  virtual Status copy(std::byte* target, const std::byte* source, uint64_t bytes, Direction direction,
                      Stream stream) = 0;
  // Has `function(data)` called in the stream's order, on a thread of the backend's own. The function may not call the
  // backend.
  virtual Status call(void (*function)(void*), void* data, Stream stream) = 0;
  virtual Status launch(const Kernel& kernel, Stream stream) = 0;
  // See Device; any thread.
  virtual Status enter_thread() = 0;
  // Blocks until everything that was issued has ended.
  virtual Status finish() = 0;

  virtual const DeviceFacts& facts() const = 0;
};

}  // namespace penstock::gpu
