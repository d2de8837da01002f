#include "gpu/streamed_device.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock::gpu {
namespace {

using namespace std::chrono_literals;

// Large enough that the wake-ups between its parts cost little, small enough that any machine can pin it.
constexpr uint64_t kStagingBytes = 4 * kMiB;

// A lost device may never signal, so wait() polls this often.
constexpr std::chrono::nanoseconds kLookAnyway = 100ms;

void signal(void* completion_fd) {
  uint64_t one = 1;
  // The counter cannot overflow; and if it could, it would still be readable.
  [[maybe_unused]] ssize_t written = write(*static_cast<int*>(completion_fd), &one, sizeof one);
}

CopyWay way_of(const Lease& source, const Lease& target) {
  CHECK(source.tier() == Tier::device || target.tier() == Tier::device, "a device copy from ", name_of(source.tier()),
        " to ", name_of(target.tier()));
  if (source.tier() != Tier::device) return CopyWay::host_to_device;
  if (target.tier() != Tier::device) return CopyWay::device_to_host;
  return CopyWay::device_to_device;
}

}  // namespace

Result<std::unique_ptr<Device>> StreamedDevice::open(std::unique_ptr<Backend> backend, uint64_t arena_bytes) {
  std::unique_ptr<StreamedDevice> device(new StreamedDevice(std::move(backend)));
  PENSTOCK_TRY(device->take(arena_bytes).within("open " + device->facts().name));
  return Result<std::unique_ptr<Device>>(std::move(device));
}

Status StreamedDevice::take(uint64_t arena_bytes) {
  PENSTOCK_TRY_ASSIGN(memory, backend_->reserve(arena_bytes));
  CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kAlignmentBytes == 0);
  memory_ = memory;
  completion_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (completion_fd_ < 0) return errno_status("eventfd", errno);
  PENSTOCK_TRY_ASSIGN(kernel_stream, backend_->make_stream());
  kernel_stream_ = kernel_stream;
  for (CopyQueue* queue : {&to_device_, &to_host_}) {
    PENSTOCK_TRY_ASSIGN(copies, backend_->make_stream());
    PENSTOCK_TRY_ASSIGN(signals, backend_->make_stream());
    queue->copies = copies;
    queue->signals = signals;
  }
  return Status();
}

StreamedDevice::~StreamedDevice() {
  while (!idle()) wait(1s);
  // Signals to the eventfd and kernels on the arena may still be in flight.
  [[maybe_unused]] Status status = backend_->finish();
  backend_.reset();
  if (completion_fd_ >= 0) close(completion_fd_);
}

HostRegistration StreamedDevice::register_host_memory(std::span<std::byte> arena,
                                                      std::span<const std::span<std::byte>> windows) {
  CHECK(registered_.empty() && idle(), "host memory is registered once, before any copy");
  HostRegistration done;
  Status refusal = backend_->register_host(arena);
  if (refusal.ok()) {
    registered_.push_back(arena);
    done.extent = HostRegistration::Extent::all;
    done.registered_bytes = arena.size();
    registration_text_ = "host memory registered";
    return done;
  }
  done.explanation = text("host memory of ", bytes_text(arena.size()), " is not registered: ", refusal.message());
  for (std::span<std::byte> window : windows) {
    if (!backend_->register_host(window).ok()) continue;
    registered_.push_back(window);
    done.registered_bytes += window.size();
  }
  if (done.registered_bytes > 0) {
    done.extent = HostRegistration::Extent::windows;
    registration_text_ = text("windows of ", bytes_text(done.registered_bytes), " registered");
    done.explanation += text("; its windows of ", bytes_text(done.registered_bytes), " are");
  }
  done.explanation += text("; copies elsewhere go through a pinned buffer of ", bytes_text(kStagingBytes));
  return done;
}

bool StreamedDevice::is_direct(std::span<const std::byte> host) const {
  if (backend_->copies_unregistered()) return true;
  return std::any_of(registered_.begin(), registered_.end(), [&](std::span<const std::byte> memory) {
    return host.data() >= memory.data() && host.data() + host.size() <= memory.data() + memory.size();
  });
}

Copy StreamedDevice::copy(std::span<const CopyRun> runs, Lease source, Lease target, std::span<const Event> after) {
  CopyWay way = way_of(source, target);
  CopyQueue& queue = way == CopyWay::device_to_host ? to_host_ : to_device_;
  Pending pending;
  pending.state = std::make_shared<TransferState>(*this, std::move(target));
  pending.source = std::move(source);
  pending.refused = issue(runs, pending, queue, way, after);

  // Record the event even if a part was refused: what was issued still uses the leases.
  Result<Event> done = backend_->record(queue.copies);
  if (!done.ok()) return end_now(std::move(pending), done.status());
  pending.done = *done;
  Status told = wake_up_at(*done, queue.signals);
  if (pending.refused.ok()) pending.refused = told;
  Copy result{Transfer(pending.state), *done};
  queue.pending.push_back(std::move(pending));
  return result;
}

// No event tells when the copy ends, so wait for everything.
Copy StreamedDevice::end_now(Pending pending, const Status& unrecorded) {
  Status drained = backend_->finish();
  Status refused = pending.refused.ok() ? unrecorded : pending.refused;
  pending.source = Lease();
  pending.state->end(drained.ok() ? refused : refused.within(drained.message()));
  return {Transfer(pending.state), Event()};
}

Status StreamedDevice::wake_at(const Event& event) {
  if (!marks_) {
    PENSTOCK_TRY_ASSIGN(marks, backend_->make_stream());
    marks_ = marks;
  }
  return wake_up_at(event, *marks_);
}

Status StreamedDevice::wake_up_at(const Event& done, Stream signals) {
  Status told = backend_->make_wait(signals, done);
  if (told.ok()) told = backend_->call(signal, &completion_fd_, signals);
  if (!told.ok()) signal(&completion_fd_);  // nobody else will: have poll() look, wait() looks anyway
  return told;
}

Status StreamedDevice::issue(std::span<const CopyRun> runs, Pending& pending, CopyQueue& queue, CopyWay way,
                             std::span<const Event> after) {
  const Lease& target = pending.state->lease();
  const Lease& source = pending.source;
  for (const Event& event : after) PENSTOCK_TRY(backend_->make_wait(queue.copies, event));
  for (const CopyRun& run : runs) {
    CHECK(run.source_offset_bytes + run.length_bytes <= source.size_bytes() &&
              run.target_offset_bytes + run.length_bytes <= target.size_bytes(),
          "a run of ", run.length_bytes, " B at ", run.source_offset_bytes, " of ", source.size_bytes(), " B to ",
          run.target_offset_bytes, " of ", target.size_bytes(), " B");
    std::byte* to = target.data() + run.target_offset_bytes;
    const std::byte* from = source.data() + run.source_offset_bytes;
    bool direct =
        way == CopyWay::device_to_device || is_direct({way == CopyWay::host_to_device ? from : to, run.length_bytes});
    if (direct) {
      PENSTOCK_TRY(backend_->copy(to, from, run.length_bytes, way, queue.copies));
    } else {
      PENSTOCK_TRY(issue_staged(to, from, run.length_bytes, pending, queue, way));
    }
  }
  return Status();
}

// The memcpy runs in stream order too, so nothing here blocks and events keep their meaning.
Status StreamedDevice::issue_staged(std::byte* target, const std::byte* source, uint64_t bytes, Pending& pending,
                                    CopyQueue& queue, CopyWay way) {
  if (queue.staging.empty()) {
    PENSTOCK_TRY_ASSIGN(staging, backend_->pinned(kStagingBytes));
    queue.staging = staging;
  }
  auto memcpy_part = [](void* data) {
    const HostPart& part = *static_cast<HostPart*>(data);
    std::memcpy(part.target, part.source, part.bytes);
  };
  std::byte* staging = queue.staging.data();
  for (uint64_t at = 0; at < bytes; at += kStagingBytes) {
    uint64_t length = std::min(kStagingBytes, bytes - at);
    if (way == CopyWay::host_to_device) {
      pending.host_parts.push_back({staging, source + at, length});
      PENSTOCK_TRY(backend_->call(memcpy_part, &pending.host_parts.back(), queue.copies));
      PENSTOCK_TRY(backend_->copy(target + at, staging, length, way, queue.copies));
    } else {
      pending.host_parts.push_back({target + at, staging, length});
      PENSTOCK_TRY(backend_->copy(staging, source + at, length, way, queue.copies));
      PENSTOCK_TRY(backend_->call(memcpy_part, &pending.host_parts.back(), queue.copies));
    }
  }
  return Status();
}

size_t StreamedDevice::poll() {
  uint64_t signals = 0;
  // Usually it is empty. What matters is that a later signal makes it readable again.
  [[maybe_unused]] ssize_t got = read(completion_fd_, &signals, sizeof signals);
  return end_ready(to_device_) + end_ready(to_host_);
}

size_t StreamedDevice::end_ready(CopyQueue& queue) {
  size_t ended = 0;
  while (!queue.pending.empty()) {
    Result<bool> reached = backend_->reached(queue.pending.front().done);
    if (reached.ok() && !*reached) break;
    // Removed first, because a function given to then() may start another copy.
    Pending first = std::move(queue.pending.front());
    queue.pending.pop_front();
    first.source = Lease();
    first.state->end(reached.ok() ? first.refused : reached.status().within("copy on " + facts().name));
    ++ended;
  }
  return ended;
}

size_t StreamedDevice::wait(std::chrono::nanoseconds timeout) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    size_t ended = poll();
    auto left = deadline - std::chrono::steady_clock::now();
    if (ended > 0 || idle() || left <= 0ns) return ended;
    auto nap = std::chrono::ceil<std::chrono::milliseconds>(std::min<std::chrono::nanoseconds>(left, kLookAnyway));
    pollfd readable{completion_fd_, POLLIN, 0};
    ::poll(&readable, 1, static_cast<int>(nap.count()));
  }
}

void StreamedDevice::drive_until_ended(const TransferState& state) {
  while (!state.ended()) wait(1s);
}

std::string StreamedDevice::description() const {
  return text(facts().name, ", ", bytes_text(memory_.size()), " arena, ", registration_text_);
}

}  // namespace penstock::gpu
