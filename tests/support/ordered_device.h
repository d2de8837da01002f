// A host device for which AccessOrder judges every copy and kernel. Its streams take their time by a seed, as those of
// a capricious device; and the null stream is one of them, as on a GPU, not the calling thread.
#pragma once

#include "tests/support/access_order.h"
#include "tests/support/capricious_device.h"

namespace penstock::test {

struct KernelAccesses {
  const char* name = nullptr;
  std::vector<AccessOrder::Run> reads, writes;
};
KernelAccesses accesses_of(const Kernel& kernel);

class OrderedBackend final : public CapriciousBackend {
 public:
  // `order` outlives it, and knows streams by their handles.
  OrderedBackend(AccessOrder& order, uint64_t seed, uint64_t arena_bytes)
      : CapriciousBackend(seed, arena_bytes), order_(order) {}
  ~OrderedBackend() override { order_.forget({arena_.data(), arena_.size()}); }

  Result<std::span<std::byte>> reserve(uint64_t bytes) override {
    PENSTOCK_TRY_ASSIGN(null, CapriciousBackend::make_stream());
    null_ = null;
    PENSTOCK_TRY_ASSIGN(arena, CapriciousBackend::reserve(bytes));
    return arena_ = arena;
  }
  Result<Event> record(Stream stream) override {
    const Stream on = meant(stream);
    auto state = std::make_shared<Recorded>();
    state->moment = order_.record(on.handle);
    PENSTOCK_TRY_ASSIGN(reached, CapriciousBackend::record(on));
    state->event = reached;
    return Event(std::move(state));
  }
  Status make_wait(Stream stream, const Event& event) override {
    if (!event) return Status();
    order_.make_wait(meant(stream).handle, recorded(event).moment);
    return CapriciousBackend::make_wait(meant(stream), recorded(event).event);
  }
  Result<bool> reached(const Event& event) override {
    if (!event) return true;
    PENSTOCK_TRY_ASSIGN(reached, CapriciousBackend::reached(recorded(event).event));
    if (reached) order_.host_learned(recorded(event).moment);
    return reached;
  }
  Status copy(std::byte* target, const std::byte* source, uint64_t bytes, gpu::CopyWay way, Stream stream) override {
    constexpr const char* kNames[] = {"a copy to the device", "a copy to the host", "a copy within the device"};
    const AccessOrder::Run from{source, bytes}, to{target, bytes};
    order_.put(meant(stream).handle, kNames[static_cast<size_t>(way)], {&from, 1}, {&to, 1});
    return CapriciousBackend::copy(target, source, bytes, way, meant(stream));
  }
  Status call(void (*function)(void*), void* data, Stream stream) override {
    return CapriciousBackend::call(function, data, meant(stream));
  }
  Status launch(const Kernel& kernel, Stream stream) override {
    const KernelAccesses accesses = accesses_of(kernel);
    order_.put(meant(stream).handle, accesses.name, accesses.reads, accesses.writes);
    return CapriciousBackend::launch(kernel, meant(stream));
  }

 private:
  struct Recorded final : Event::State {
    Event event;
    AccessOrder::Moment moment;
  };
  static const Recorded& recorded(const Event& event) { return static_cast<const Recorded&>(*event.state()); }
  Stream meant(Stream stream) const { return stream.handle == nullptr ? null_ : stream; }

  AccessOrder& order_;
  Stream null_;
  std::span<std::byte> arena_;
};

inline Result<std::unique_ptr<Device>> open_ordered_device(AccessOrder& order, uint64_t seed, uint64_t arena_bytes) {
  return gpu::StreamedDevice::open(std::make_unique<OrderedBackend>(order, seed, arena_bytes), arena_bytes);
}

}  // namespace penstock::test
