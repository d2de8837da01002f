#include "gpu/cuda/cuda_backend.h"

#include <dlfcn.h>

#include <mutex>
#include <utility>

#include "gpu/cuda/kernels.h"
#include "gpu/cuda_device.h"
#include "gpu/streamed_device.h"

namespace penstock::gpu {
namespace {

// Clears the runtime's last error, which an unrelated call would report again.
Status refusal(const std::string& what, cudaError_t error, std::string remedy = {}) {
  cudaGetLastError();
  Code code = error == cudaErrorMemoryAllocation ? Code::kDoesNotFit : Code::kEnvironment;
  return Status(code, text(what, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")"),
                std::move(remedy));
}

Status outcome(const char* what, cudaError_t error) { return error == cudaSuccess ? Status() : refusal(what, error); }

// Whether this process already has a context on the device. Only the driver can be asked without creating one.
bool has_context(int index) {
  using GetState = int (*)(int device, unsigned* flags, int* active);
  static const GetState get_state = [] {
    const char* name = "cuDevicePrimaryCtxGetState";
    void* symbol = dlsym(RTLD_DEFAULT, name);
    if (symbol == nullptr) {
      if (void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) symbol = dlsym(driver, name);
    }
    return reinterpret_cast<GetState>(symbol);
  }();
  unsigned flags = 0;
  int active = 1;
  return get_state == nullptr || get_state(index, &flags, &active) != 0 || active != 0;
}

// Restores the calling thread's current device, because the thread may be the trainer's. Does not restore a device on
// which this process has no context (device 0 of a thread that never chose one): that would create a context there,
// which takes half a GB of its memory.
class OnDevice {
 public:
  explicit OnDevice(int index) {
    cudaGetDevice(&before_);
    if (before_ != index) {
      cudaSetDevice(index);
      changed_ = true;
    }
  }
  ~OnDevice() {
    if (changed_ && has_context(before_)) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;
  bool changed_ = false;
};

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace

// Events are reused: creating one takes a lock in the driver, and a step needs thousands.
class CudaEventPool : public std::enable_shared_from_this<CudaEventPool> {
 public:
  class Loan : public Event::State {
   public:
    Loan(std::shared_ptr<CudaEventPool> pool, cudaEvent_t event) : pool_(std::move(pool)), event_(event) {}
    ~Loan() override { pool_->put_back(event_); }
    cudaEvent_t event() const { return event_; }

   private:
    std::shared_ptr<CudaEventPool> pool_;
    cudaEvent_t event_;
  };

  ~CudaEventPool() {
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }

  Result<std::shared_ptr<Loan>> take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        cudaEvent_t event = free_.back();
        free_.pop_back();
        return std::make_shared<Loan>(shared_from_this(), event);
      }
    }
    cudaEvent_t event = nullptr;
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error != cudaSuccess) return refusal("make an event", error);
    return std::make_shared<Loan>(shared_from_this(), event);
  }

 private:
  void put_back(cudaEvent_t event) {
    std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;  // GUARDED_BY(mutex_)
};

namespace {

cudaEvent_t cuda_event(const Event& event) { return static_cast<const CudaEventPool::Loan&>(*event.state()).event(); }

}  // namespace

Result<std::unique_ptr<Backend>> CudaBackend::open(int index) {
  std::unique_ptr<CudaBackend> backend(new CudaBackend(index));
  OnDevice here(index);
  PENSTOCK_TRY(backend->learn_facts());
  backend->events_ = std::make_shared<CudaEventPool>();
  return Result<std::unique_ptr<Backend>>(std::move(backend));
}

CudaBackend::~CudaBackend() {
  OnDevice here(index_);
  [[maybe_unused]] Status finished = finish();
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  for (std::byte* memory : registered_) cudaHostUnregister(memory);
  for (std::byte* memory : pinned_) cudaFreeHost(memory);
  cudaFree(arena_);
}

Status CudaBackend::learn_facts() {
  size_t free_bytes = 0, total_bytes = 0;
  PENSTOCK_TRY(outcome("ask for free memory", cudaMemGetInfo(&free_bytes, &total_bytes)));
  cudaDeviceProp properties;
  PENSTOCK_TRY(outcome("ask for properties", cudaGetDeviceProperties(&properties, index_)));
  auto attribute = [&](cudaDeviceAttr which, int unknown) {
    int value = unknown;
    if (cudaDeviceGetAttribute(&value, which, index_) != cudaSuccess) {
      cudaGetLastError();
      return unknown;
    }
    return value;
  };
  facts_.name = properties.name;
  facts_.memory_bytes = total_bytes;
  facts_.memory_free_bytes = free_bytes;
  facts_.copy_engines = static_cast<uint32_t>(attribute(cudaDevAttrAsyncEngineCount, 1));
  facts_.shares_host_memory = attribute(cudaDevAttrIntegrated, 0) != 0;
  facts_.reads_pageable_memory = attribute(cudaDevAttrPageableMemoryAccessUsesHostPageTables, 0) != 0;
  facts_.numa_node = attribute(cudaDevAttrHostNumaId, -1);
  facts_.compute_capability = static_cast<uint32_t>(10 * attribute(cudaDevAttrComputeCapabilityMajor, 0) +
                                                    attribute(cudaDevAttrComputeCapabilityMinor, 0));
  int devices = 0;
  cudaGetDeviceCount(&devices);
  for (int peer = 0; peer < devices; ++peer) {
    int reaches = 0;
    if (peer != index_ && cudaDeviceCanAccessPeer(&reaches, index_, peer) == cudaSuccess && reaches != 0) {
      facts_.reaches_peers = true;
    }
  }
  return Status();
}

Result<std::span<std::byte>> CudaBackend::reserve(uint64_t bytes) {
  OnDevice here(index_);
  void* memory = nullptr;
  cudaError_t error = cudaMalloc(&memory, bytes + kAlignmentBytes);
  if (error != cudaSuccess) {
    return refusal(text("device budget: needs ", bytes, " B (", bytes_text(bytes), "), ", facts_.memory_free_bytes,
                        " B of ", facts_.memory_bytes, " B were free"),
                   error, "lower --budget device=, or end what else uses this GPU (nvidia-smi)");
  }
  arena_ = static_cast<std::byte*>(memory);
  uint64_t address = round_up(reinterpret_cast<uintptr_t>(arena_), kAlignmentBytes);
  return std::span<std::byte>(reinterpret_cast<std::byte*>(address), bytes);
}

Result<std::span<std::byte>> CudaBackend::pinned(uint64_t bytes) {
  OnDevice here(index_);
  void* memory = nullptr;
  cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  if (error != cudaSuccess) return refusal(text("pin ", bytes, " B"), error, "raise the memlock limit (ulimit -l)");
  pinned_.push_back(static_cast<std::byte*>(memory));
  return std::span<std::byte>(pinned_.back(), bytes);
}

Status CudaBackend::register_host(std::span<std::byte> memory) {
  OnDevice here(index_);
  cudaError_t error = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (error != cudaSuccess) return refusal("cudaHostRegister", error, "raise the memlock limit (ulimit -l)");
  registered_.push_back(memory.data());
  return Status();
}

Result<Stream> CudaBackend::make_stream() {
  OnDevice here(index_);
  cudaStream_t stream = nullptr;
  // Non-blocking, so that it does not wait for the legacy default stream, on which others compute.
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return refusal("make a stream", error);
  streams_.push_back(stream);
  return Stream{stream};
}

Result<Event> CudaBackend::record(Stream stream) {
  OnDevice here(index_);
  PENSTOCK_TRY_ASSIGN(loan, events_->take());
  cudaError_t error = cudaEventRecord(loan->event(), cuda_stream(stream));
  if (error != cudaSuccess) return refusal("record an event", error);
  return Event(loan);
}

Status CudaBackend::make_wait(Stream stream, const Event& event) {
  if (!event) return Status();
  OnDevice here(index_);
  return outcome("make a stream wait", cudaStreamWaitEvent(cuda_stream(stream), cuda_event(event), 0));
}

Result<bool> CudaBackend::reached(const Event& event) {
  if (!event) return true;
  OnDevice here(index_);
  cudaError_t error = cudaEventQuery(cuda_event(event));
  if (error == cudaSuccess) return true;
  if (error != cudaErrorNotReady) return refusal("ask for an event", error);
  cudaGetLastError();
  return false;
}

Status CudaBackend::copy(std::byte* target, const std::byte* source, uint64_t bytes, CopyWay way, Stream stream) {
  OnDevice here(index_);
  cudaMemcpyKind kind = way == CopyWay::host_to_device   ? cudaMemcpyHostToDevice
                        : way == CopyWay::device_to_host ? cudaMemcpyDeviceToHost
                                                         : cudaMemcpyDeviceToDevice;
  cudaError_t error = cudaMemcpyAsync(target, source, bytes, kind, cuda_stream(stream));
  return error == cudaSuccess ? Status() : refusal(text("copy ", bytes, " B"), error);
}

Status CudaBackend::call(void (*function)(void*), void* data, Stream stream) {
  OnDevice here(index_);
  return outcome("have the host called", cudaLaunchHostFunc(cuda_stream(stream), function, data));
}

Status CudaBackend::launch(const Kernel& kernel, Stream stream) {
  OnDevice here(index_);
  return outcome("launch a kernel", launch_on_cuda(kernel, cuda_stream(stream)));
}

Status CudaBackend::enter_thread() { return outcome("make the device current", cudaSetDevice(index_)); }

Status CudaBackend::finish() {
  OnDevice here(index_);
  for (cudaStream_t stream : streams_) PENSTOCK_TRY(outcome("finish a stream", cudaStreamSynchronize(stream)));
  return Status();
}

CudaFindings find_cuda() {
  CudaFindings findings;
  cudaRuntimeGetVersion(&findings.built_for);
  cudaDriverGetVersion(&findings.driver_version);
  cudaError_t error = cudaGetDeviceCount(&findings.devices);
  if (error != cudaSuccess) {
    findings.devices = 0;
    findings.error = text(cudaGetErrorName(error), ": ", cudaGetErrorString(error));
    cudaGetLastError();
  }
  return findings;
}

Result<std::string> cuda_identity(int index) {
  PENSTOCK_TRY(usable(find_cuda(), index));
  cudaDeviceProp properties;
  PENSTOCK_TRY(outcome("ask for properties", cudaGetDeviceProperties(&properties, index)));
  return std::string(properties.uuid.bytes, sizeof properties.uuid.bytes);
}

Result<std::unique_ptr<Backend>> open_cuda_backend(int index) {
  PENSTOCK_TRY(usable(find_cuda(), index));
  PENSTOCK_TRY_ASSIGN(backend, CudaBackend::open(index));
  PENSTOCK_TRY(usable(backend->facts()));
  return Result<std::unique_ptr<Backend>>(std::move(backend));
}

Result<std::unique_ptr<Device>> open_cuda_device(const CudaDeviceOptions& options) {
  PENSTOCK_TRY_ASSIGN(backend, open_cuda_backend(options.index));
  return StreamedDevice::open(std::move(backend), options.arena_bytes);
}

}  // namespace penstock::gpu
