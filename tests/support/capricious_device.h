// A host device whose copies take their time, by a seed, and leave nothing but noise where they have not yet arrived:
// whoever reads a place too early, or still reads it when it is filled again, computes with noise. And a stream of a
// trainer on it that takes its time as well.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "gpu/host_backend.h"
#include "gpu/streamed_device.h"

namespace penstock::test {

// Any thread may draw.
class Delays {
 public:
  explicit Delays(uint64_t seed) : random_(seed) {}
  // Mostly none or short, sometimes longer than anything else takes.
  std::chrono::microseconds draw() {
    std::lock_guard lock(mutex_);
    const uint64_t kind = random_() % 16;
    return std::chrono::microseconds(kind < 8 ? 0 : kind < 15 ? random_() % 200 : random_() % 3000);
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;  // GUARDED_BY(mutex_)
};

class CapriciousBackend : public gpu::HostBackend {
 public:
  CapriciousBackend(uint64_t seed, uint64_t arena_bytes) : HostBackend({.arena_bytes = arena_bytes}), delays_(seed) {}

  Status copy(std::byte* target, const std::byte* source, uint64_t bytes, gpu::CopyWay way, Stream stream) override {
    struct Noise {
      std::byte* target;
      uint64_t bytes;
      std::chrono::microseconds delay;
    };
    auto make_noise = [](void* data) {
      const std::unique_ptr<Noise> noise(static_cast<Noise*>(data));
      std::fill_n(noise->target, noise->bytes, std::byte{0xff});  // no number, in any format
      std::this_thread::sleep_for(noise->delay);
    };
    PENSTOCK_TRY(call(make_noise, new Noise{target, bytes, delays_.draw()}, stream));
    return HostBackend::copy(target, source, bytes, way, stream);
  }

 private:
  Delays delays_;
};

inline Result<std::unique_ptr<Device>> open_capricious_device(uint64_t seed, uint64_t arena_bytes) {
  return gpu::StreamedDevice::open(std::make_unique<CapriciousBackend>(seed, arena_bytes), arena_bytes);
}

class CapriciousStream {
 public:
  // What is put takes this long at least.
  explicit CapriciousStream(uint64_t seed, std::chrono::microseconds least = {}) : delays_(seed), least_(least) {}

  Stream handle() { return Stream{&stream_}; }
  void put(std::function<void()> work) {
    stream_.put([delay = least_ + delays_.draw(), work = std::move(work)] {
      std::this_thread::sleep_for(delay);
      work();
    });
  }

 private:
  Delays delays_;
  const std::chrono::microseconds least_;
  gpu::HostStream stream_;
};

}  // namespace penstock::test
