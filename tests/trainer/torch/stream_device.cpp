#include "tests/trainer/torch/stream_device.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/host_stream.h"
#include "runtime/trainer/torch/saved_tensors.h"
#include "tests/support/capricious_device.h"

namespace penstock::test {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

// LibTorch keeps it to the end.
struct World {
  Delays* delays = new Delays(1);
  std::mutex mutex;
  std::vector<std::unique_ptr<gpu::HostStream>> streams;  // GUARDED_BY(mutex); by id, 0 is the default stream
  std::atomic<uint64_t> operations = 0;
  AccessOrder order;  // which knows streams by their native handles

  gpu::HostStream& stream(c10::StreamId id) {
    std::lock_guard lock(mutex);
    while (streams.size() <= static_cast<size_t>(id)) streams.push_back(std::make_unique<gpu::HostStream>());
    return *streams[static_cast<size_t>(id)];
  }
  c10::StreamId add_stream() {
    std::lock_guard lock(mutex);
    if (streams.empty()) streams.push_back(std::make_unique<gpu::HostStream>());
    streams.push_back(std::make_unique<gpu::HostStream>());
    return static_cast<c10::StreamId>(streams.size() - 1);
  }
  void put(c10::StreamId id, std::function<void()> work) {
    ++operations;
    stream(id).put([delay = delays->draw(), work = std::move(work)] {
      std::this_thread::sleep_for(delay / 8);
      work();
    });
  }
  void wait(c10::StreamId id) {
    std::promise<void> come;
    stream(id).put([&come] { come.set_value(); });
    come.get_future().wait();
  }
  // As the host does, which then knows what has ended.
  void synchronize(c10::StreamId id) {
    const AccessOrder::Moment end = order.record(&stream(id));
    wait(id);
    order.host_learned(end);
  }
};

World& world() {
  static auto* the_one = new World;
  return *the_one;
}

thread_local c10::StreamId current = 0;

struct Mark {
  AccessOrder::Moment moment;
  std::atomic<bool> reached = false;
};
using SharedMark = std::shared_ptr<Mark>;

// An operation that is the CPU's copies what it reads and writes to the host and back, which a GPU's does not: these
// copies have no part in the order of what is put on streams, nor does the host learn from their ends.
thread_local bool within_operation = false;

struct GuardImpl final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  static c10::Stream of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
  c10::Stream getStream(c10::Device) const override { return of(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return of(world().add_stream()); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return of(std::exchange(current, stream.id())); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &world().stream(stream.id()); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new SharedMark;
    auto mark = *static_cast<SharedMark*>(*event) = std::make_shared<Mark>();
    mark->moment = world().order.record(&world().stream(stream.id()));
    world().put(stream.id(), [mark] {
      mark->reached = true;
      mark->reached.notify_all();
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    world().order.make_wait(&world().stream(stream.id()), (*static_cast<SharedMark*>(event))->moment);
    world().put(stream.id(), [mark = *static_cast<SharedMark*>(event)] { mark->reached.wait(false); });
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const SharedMark& mark = *static_cast<SharedMark*>(event);
    if (!mark->reached) return false;
    world().order.host_learned(mark->moment);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const SharedMark& mark = *static_cast<SharedMark*>(event);
    mark->reached.wait(false);
    world().order.host_learned(mark->moment);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<SharedMark*>(event); }
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream& stream) const override { world().synchronize(stream.id()); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

class Memory final : public c10::DeviceAllocator {
 public:
  static Memory& get() {
    static auto* memory = new Memory;
    return *memory;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &drop, kDevice};
    void* data = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    std::memset(data, 0xff, bytes);
    world().order.forget({data, bytes});
    std::lock_guard lock(mutex_);
    blocks_[data] = {bytes, current};
    stats_.allocated_bytes[0].increase(bytes);
    return {data, data, &drop, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    std::lock_guard lock(mutex_);
    stats_.allocated_bytes[0].reset_peak();
  }

 private:
  struct Block {
    size_t bytes = 0;
    c10::StreamId stream = 0;
  };

  static void drop(void* data) {
    if (data == nullptr) return;
    Block block;
    {
      std::lock_guard lock(get().mutex_);
      block = get().blocks_.extract(data).mapped();
      get().stats_.allocated_bytes[0].decrease(block.bytes);
    }
    world().order.give_back(&world().stream(block.stream), {data, block.bytes});
    world().stream(block.stream).put([data, bytes = block.bytes] {
      std::memset(data, 0xff, bytes);
      world().order.forget({data, bytes});
      std::free(data);
    });
  }

  std::mutex mutex_;
  std::map<void*, Block> blocks_;  // GUARDED_BY(mutex_)
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
};

// The same elements as a CPU tensor, which owns nothing.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu() || tensor.numel() == 0) return tensor.is_cpu() ? tensor : at::empty({0}, tensor.dtype());
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

// From its first element to behind its last.
AccessOrder::Run run_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return {};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {tensor.const_data_ptr(), static_cast<uint64_t>(last + 1) * tensor.element_size()};
}

using Runs = std::vector<AccessOrder::Run>;

void add_run(Runs& runs, const at::Tensor& tensor) {
  if (tensor.defined() && tensor.device() == kDevice) runs.push_back(run_of(tensor));
}

void judge(const std::string& what, const Runs& reads, const Runs& writes) {
  if (!within_operation) world().order.put(&world().stream(current), what, reads, writes);
}

// Whatever it copies, by the stream's order: from the host at once into a place of its own, to the host with a wait.
at::Tensor& copy(at::Tensor& target, const at::Tensor& source, bool) {
  if (target.numel() == 0) return target;
  const c10::StreamId id = current;
  Runs reads, writes;
  add_run(reads, source), add_run(writes, target);
  judge("a copy of LibTorch's", reads, writes);
  const at::Tensor from = source.is_cpu() ? source.clone() : on_host(source), to = on_host(target);
  auto work = [from, to]() mutable {
    const c10::AutoGradMode not_recorded(false);
    to.copy_(from);
  };
  world().put(id, std::move(work));
  if (!target.is_cpu()) return target;
  if (within_operation)
    world().wait(id);
  else
    world().synchronize(id);
  return target;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::Tensor into = target;
  return copy(into, source, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  at::Tensor into = target;
  if (into.sizes() != source.sizes()) at::native::resize_(into, source.sizes());
  return copy(into, source, false);
}

at::Scalar scalar_of(const at::Tensor& tensor) {
  judge("a value's reading", {run_of(tensor)}, {});
  world().synchronize(current);
  return at::native::_local_scalar_dense_cpu(on_host(tensor));
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &Memory::get(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      sizes, strides, &Memory::get(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(type));
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<at::Tensor> found;
  if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) found.push_back(*tensor);
  return found;
}

// Refuses what a GPU's kernels refuse: tensors elsewhere that are more than a number.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto refuse_elsewhere = [&](const at::Tensor& tensor) {
    TORCH_CHECK(!tensor.defined() || tensor.device() == kDevice || tensor.dim() == 0, op.schema().name(),
                ": a tensor on ", tensor.device(), " among those of a device");
  };
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  Runs reads, writes;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    for (const at::Tensor& tensor : tensors_of(torch::jit::peek(*stack, i, arguments.size()))) {
      refuse_elsewhere(tensor);
      add_run(alias != nullptr && alias->isWrite() ? writes : reads, tensor);
    }
  }
  judge(op.schema().name(), reads, writes);
  const bool outer = std::exchange(within_operation, true);
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    within_operation = outer;
    throw;
  }
  within_operation = outer;
  Runs results;
  const size_t count = op.schema().returns().size();
  for (size_t i = 0; i < count; ++i)
    for (const at::Tensor& tensor : tensors_of(torch::jit::peek(*stack, i, count))) add_run(results, tensor);
  judge(op.schema().name(), {}, results);
}

at::Tensor as_strided(const at::Tensor& tensor, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(tensor, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                           offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("resize_", TORCH_FN(at::native::resize_));
  library.impl(
      "set_.source_Storage_storage_offset",
      TORCH_FN(static_cast<at::Tensor& (*)(at::Tensor&, c10::Storage, int64_t, c10::IntArrayRef, c10::IntArrayRef)>(
          at::native::set_storage_cpu_)));
  library.impl("copy_", TORCH_FN(copy));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(scalar_of));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace

c10::Device stream_device(uint64_t seed) {
  static const bool once = [] {
    static const GuardImpl guard;
    static Hooks hooks;
    c10::impl::DeviceGuardImplRegistrar(kType, &guard);
    c10::SetAllocator(kType, &Memory::get());
    c10::register_privateuse1_backend("streams");
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  (void)once;
  world().delays = new Delays(seed);  // what is under way may still draw from the others
  return kDevice;
}

// LibTorch counts its devices once, when anything goes back first.
[[maybe_unused]] const c10::Device at_start = [] {
  trainer::hook_autograd();
  return stream_device(1);
}();

uint64_t stream_device_operations() { return world().operations; }
AccessOrder& stream_device_order() { return world().order; }

}  // namespace penstock::test
