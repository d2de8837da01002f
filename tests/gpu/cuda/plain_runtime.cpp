#include "tests/gpu/cuda/plain_runtime.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "gpu/cuda/kernels.h"
#include "gpu/host_kernels.h"
#include "gpu/host_stream.h"
#include "tiering/check.h"

namespace penstock::test {
namespace {

// Where a stream was when an event was recorded on it.
struct Point {
  std::atomic<bool> reached = false;
};

struct PlainEvent {
  std::shared_ptr<Point> point;
};

// All of it under `mutex`; a stream's own thread takes it nowhere.
struct Runtime {
  std::mutex mutex;
  PlainMachine machine;
  std::map<std::byte*, size_t> device_memory, pinned, registered;
  std::map<cudaStream_t, std::unique_ptr<gpu::HostStream>> streams;
  std::map<cudaEvent_t, std::unique_ptr<PlainEvent>> events;
  std::set<int> contexts;  // devices on which something runs
};

Runtime& runtime() {
  static Runtime runtime;
  return runtime;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Whether `call` is one of those that shall be refused now. Under the lock.
bool refused(const char* call) {
  auto found = runtime().machine.good_calls.find(call);
  return found != runtime().machine.good_calls.end() && found->second-- <= 0;
}

bool holds(const std::map<std::byte*, size_t>& runs, const std::byte* place, size_t bytes) {
  for (const auto& [begin, size] : runs) {
    if (place >= begin && place + bytes <= begin + size) return true;
  }
  return false;
}

gpu::HostStream& stream_of(cudaStream_t handle) {
  auto& stream = runtime().streams[handle];
  CHECK(stream != nullptr || handle == nullptr, "a stream that nobody made");
  if (stream == nullptr) stream = std::make_unique<gpu::HostStream>();  // the legacy default stream
  return *stream;
}

// As cudaMalloc: aligned to 512 B, and here to no more.
cudaError_t take_memory(std::map<std::byte*, size_t>& from, void** memory, size_t bytes) {
  auto* whole = static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 512 + 4095) / 4096 * 4096));
  if (whole == nullptr) return cudaErrorMemoryAllocation;
  from.emplace(whole + 512, bytes);
  *memory = whole + 512;
  return cudaSuccess;
}

cudaError_t give_memory_back(std::map<std::byte*, size_t>& to, void* memory) {
  if (memory == nullptr) return cudaSuccess;
  CHECK(to.erase(static_cast<std::byte*>(memory)) == 1, "memory that was not taken is given back");
  std::free(static_cast<std::byte*>(memory) - 512);
  return cudaSuccess;
}

}  // namespace

void set_up(PlainMachine machine) {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  r.machine = std::move(machine);
  last_error = cudaSuccess;
  current_device = 0;
  r.contexts.clear();
}

void refuse_after(const std::string& call, int good_calls) {
  std::lock_guard lock(runtime().mutex);
  runtime().machine.good_calls[call] = good_calls;
}

std::set<int> contexts() {
  std::lock_guard lock(runtime().mutex);
  return runtime().contexts;
}

std::string left_over() {
  Runtime& r = runtime();
  std::lock_guard lock(r.mutex);
  r.streams.erase(nullptr);
  std::string out;
  auto count = [&](size_t number, const char* what) {
    if (number > 0) out += text(out.empty() ? "" : ", ", number, " ", what);
  };
  count(r.device_memory.size(), "allocations");
  count(r.pinned.size(), "pinned buffers");
  count(r.registered.size(), "registrations");
  count(r.streams.size(), "streams");
  count(r.events.size(), "events");
  return out;
}

}  // namespace penstock::test

namespace penstock::gpu {

// In place of kernels.cu: the same functions, in the host's loops. With PLAIN_CUDA_SLOW_KERNELS set each takes
// 0.3 ms, so that what does not wait for it is ahead of it.
cudaError_t launch_on_cuda(const Kernel& kernel, cudaStream_t stream) {
  std::lock_guard lock(test::runtime().mutex);
  if (test::refused("launch")) return test::answer(test::runtime().machine.refusal);
  static const bool is_slow = std::getenv("PLAIN_CUDA_SLOW_KERNELS") != nullptr;
  test::stream_of(stream).put([kernel] {
    if (is_slow) std::this_thread::sleep_for(std::chrono::microseconds(300));
    run_on_host(kernel);
  });
  return cudaSuccess;
}

}  // namespace penstock::gpu

using namespace penstock::test;

// Takes the lock for the rest of the call, and answers with the refusal where one is due.
#define PLAIN_CALL(name)         \
  Runtime& r = runtime();        \
  std::lock_guard lock(r.mutex); \
  if (refused(name)) return answer(r.machine.refusal)

// By name, by code that is not linked with this.
#define LOOKED_UP __attribute__((visibility("default")))

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "as the test asked";
}
cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  PLAIN_CALL("cudaRuntimeGetVersion");
  *version = r.machine.runtime_version;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  PLAIN_CALL("cudaDriverGetVersion");
  *version = r.machine.driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  PLAIN_CALL("cudaGetDeviceCount");
  *count = r.machine.devices;
  if (r.machine.driver_version / 1000 < r.machine.runtime_version / 1000) return answer(cudaErrorInsufficientDriver);
  return r.machine.devices == 0 ? answer(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  std::lock_guard lock(runtime().mutex);
  runtime().contexts.insert(device);
  return cudaSuccess;
}
// Of the driver.
LOOKED_UP int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  std::lock_guard lock(runtime().mutex);
  *flags = 0;
  *active = runtime().contexts.contains(device);
  return 0;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  PLAIN_CALL("cudaMemGetInfo");
  *free_bytes = r.machine.free_bytes;
  *total_bytes = r.machine.memory_bytes;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  PLAIN_CALL("cudaGetDeviceProperties");
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "plain memory %d", device);
  properties->uuid.bytes[0] = static_cast<char>(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  PLAIN_CALL("cudaDeviceGetAttribute");
  auto found = r.machine.attributes.find(attribute);
  if (found == r.machine.attributes.end()) return answer(cudaErrorInvalidValue);
  *value = found->second;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  PLAIN_CALL("cudaDeviceCanAccessPeer");
  CHECK(device != peer, "a device is no peer of its own");
  *can = r.machine.peers ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  PLAIN_CALL("cudaMalloc");
  if (bytes > r.machine.free_bytes) return answer(cudaErrorMemoryAllocation);
  return answer(take_memory(r.device_memory, memory, bytes));
}
cudaError_t cudaFree(void* memory) {
  PLAIN_CALL("cudaFree");
  return give_memory_back(r.device_memory, memory);
}
LOOKED_UP cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* place) {
  PLAIN_CALL("cudaPointerGetAttributes");
  *attributes = {};
  const bool is_here = holds(r.device_memory, static_cast<const std::byte*>(place), 1);
  attributes->type = is_here ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  PLAIN_CALL("cudaHostAlloc");
  return answer(take_memory(r.pinned, memory, bytes));
}
cudaError_t cudaFreeHost(void* memory) {
  PLAIN_CALL("cudaFreeHost");
  return give_memory_back(r.pinned, memory);
}
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  PLAIN_CALL("cudaHostRegister");
  if (bytes > r.machine.register_at_most_bytes) return answer(cudaErrorMemoryAllocation);
  bool added = r.registered.emplace(static_cast<std::byte*>(memory), bytes).second;
  return added ? cudaSuccess : answer(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void* memory) {
  PLAIN_CALL("cudaHostUnregister");
  CHECK(r.registered.erase(static_cast<std::byte*>(memory)) == 1, "memory that is not registered");
  // It must still be there, as for the driver, which looks at its pages.
  *static_cast<volatile std::byte*>(memory);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  PLAIN_CALL("cudaStreamCreateWithFlags");
  CHECK(flags == cudaStreamNonBlocking, "a stream that waits for the legacy default stream");
  auto made = std::make_unique<penstock::gpu::HostStream>();
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  r.streams[*stream] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::unique_ptr<penstock::gpu::HostStream> ended;  // outside the lock: it runs what is left
  PLAIN_CALL("cudaStreamDestroy");
  auto found = r.streams.find(stream);
  CHECK(found != r.streams.end() && stream != nullptr, "a stream that nobody made is destroyed");
  ended = std::move(found->second);
  r.streams.erase(found);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  auto point = std::make_shared<Point>();
  {
    PLAIN_CALL("cudaStreamSynchronize");
    stream_of(stream).put([point] {
      point->reached = true;
      point->reached.notify_all();
    });
  }
  point->reached.wait(false);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  PLAIN_CALL("cudaStreamWaitEvent");
  CHECK(r.events.contains(event), "an event that does not exist");
  std::shared_ptr<Point> point = r.events[event]->point;
  if (point != nullptr) stream_of(stream).put([point] { point->reached.wait(false); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  PLAIN_CALL("cudaEventCreateWithFlags");
  auto made = std::make_unique<PlainEvent>();
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  r.events[*event] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  PLAIN_CALL("cudaEventDestroy");
  CHECK(r.events.erase(event) == 1, "an event that does not exist is destroyed");
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  PLAIN_CALL("cudaEventRecord");
  CHECK(r.events.contains(event), "an event that does not exist");
  auto point = std::make_shared<Point>();
  r.events[event]->point = point;
  stream_of(stream).put([point] {
    point->reached = true;
    point->reached.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  PLAIN_CALL("cudaEventQuery");
  CHECK(r.events.contains(event), "an event that does not exist");
  const std::shared_ptr<Point>& point = r.events[event]->point;
  return point == nullptr || point->reached ? cudaSuccess : answer(cudaErrorNotReady);
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  PLAIN_CALL("cudaMemcpyAsync");
  auto reached = [&](const void* place, bool on_device) {
    auto* begin = static_cast<const std::byte*>(place);
    return on_device ? holds(r.device_memory, begin, bytes)
                     : holds(r.pinned, begin, bytes) || holds(r.registered, begin, bytes) ||
                           r.machine.attributes.contains(cudaDevAttrPageableMemoryAccessUsesHostPageTables);
  };
  CHECK(reached(target, kind != cudaMemcpyDeviceToHost) && reached(source, kind != cudaMemcpyHostToDevice),
        "a copy engine went astray");
  stream_of(stream).put([=] { std::memcpy(target, source, bytes); });
  return cudaSuccess;
}
LOOKED_UP cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  PLAIN_CALL("cudaLaunchHostFunc");
  stream_of(stream).put([=] { function(data); });
  return cudaSuccess;
}

}  // extern "C"
