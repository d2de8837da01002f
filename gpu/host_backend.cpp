#include "gpu/host_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <system_error>

#include "gpu/host_kernels.h"

namespace penstock::gpu {
namespace {

class HostEvent : public Event::State {
 public:
  void reach() {
    reached_.store(true, std::memory_order_release);
    reached_.notify_all();
  }
  bool reached() const { return reached_.load(std::memory_order_acquire); }
  void wait() const { reached_.wait(false, std::memory_order_acquire); }

 private:
  std::atomic<bool> reached_ = false;
};

const HostEvent& host_event(const Event& event) { return static_cast<const HostEvent&>(*event.state()); }

uint64_t physical_memory_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

Result<Buffer> map_anonymous(uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return errno_status(text("device budget: host device: ", bytes, " B"), errno, "lower --budget device=");
  }
  return Buffer(Tier::device, static_cast<std::byte*>(data), bytes,
                [](std::byte* memory, uint64_t size_bytes) { munmap(memory, size_bytes); });
}

}  // namespace

HostBackend::HostBackend(const HostDeviceOptions& options) {
  facts_.name = "host memory";
  facts_.is_host = true;
  facts_.memory_bytes = physical_memory_bytes();
  facts_.memory_free_bytes = static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE));
  facts_.copy_engines = 2;
  facts_.shares_host_memory = true;
  facts_.reads_pageable_memory = true;
  facts_.host_to_device_bytes_per_s = to_device_.bytes_per_s = options.host_to_device_bytes_per_s;
  facts_.device_to_host_bytes_per_s = to_host_.bytes_per_s = options.device_to_host_bytes_per_s;
}

HostBackend::~HostBackend() = default;

Result<std::span<std::byte>> HostBackend::reserve(uint64_t bytes) {
  if (bytes > facts_.memory_bytes) {
    return Status(Code::kDoesNotFit,
                  text("device budget: host device: needs ", bytes, " B (", bytes_text(bytes), "), this machine has ",
                       facts_.memory_bytes, " B of memory"),
                  "lower --budget device=");
  }
  return HostBackend::pinned(bytes);
}

Result<std::span<std::byte>> HostBackend::pinned(uint64_t bytes) {
  PENSTOCK_TRY_ASSIGN(buffer, map_anonymous(bytes));
  return buffers_.emplace_back(std::move(buffer)).bytes();
}

Result<Stream> HostBackend::make_stream() {
  try {
    return Stream{streams_.emplace_back(std::make_unique<HostStream>()).get()};
  } catch (const std::system_error& error) {
    return thread_status(text("start host stream: ", streams_.size(), " so far"), error.code().value());
  }
}

// The null stream is the calling thread: its work is done at once.
void HostBackend::put(Stream stream, std::function<void()> work) {
  if (stream.handle == nullptr) {
    work();
  } else {
    static_cast<HostStream*>(stream.handle)->put(std::move(work));
  }
}

Result<Event> HostBackend::record(Stream stream) {
  if (stream.handle == nullptr) return Event();
  auto event = std::make_shared<HostEvent>();
  put(stream, [event] { event->reach(); });
  return Event(event);
}

Status HostBackend::make_wait(Stream stream, const Event& event) {
  if (event) put(stream, [event] { host_event(event).wait(); });
  return Status();
}

Result<bool> HostBackend::reached(const Event& event) { return !event || host_event(event).reached(); }

void HostBackend::carry(std::byte* target, const std::byte* source, uint64_t bytes, Link* link) {
  if (link == nullptr || link->bytes_per_s == 0) {
    std::memcpy(target, source, bytes);
    return;
  }
  auto start = std::max(link->busy_until, std::chrono::steady_clock::now());
  std::memcpy(target, source, bytes);
  double seconds = static_cast<double>(bytes) / static_cast<double>(link->bytes_per_s);
  link->busy_until = start + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  std::this_thread::sleep_until(link->busy_until);
}

Status HostBackend::copy(std::byte* target, const std::byte* source, uint64_t bytes, CopyWay way, Stream stream) {
  Link* link = way == CopyWay::host_to_device ? &to_device_ : way == CopyWay::device_to_host ? &to_host_ : nullptr;
  put(stream, [=, this] { carry(target, source, bytes, link); });
  return Status();
}

Status HostBackend::call(void (*function)(void*), void* data, Stream stream) {
  put(stream, [=] { function(data); });
  return Status();
}

Status HostBackend::launch(const Kernel& kernel, Stream stream) {
  put(stream, [kernel] { run_on_host(kernel); });
  return Status();
}

Status HostBackend::finish() {
  for (const auto& stream : streams_) {
    PENSTOCK_TRY_ASSIGN(end, HostBackend::record({stream.get()}));
    host_event(end).wait();
  }
  return Status();
}

}  // namespace penstock::gpu
