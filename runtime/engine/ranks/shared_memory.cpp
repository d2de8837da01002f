#include "runtime/engine/ranks/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <thread>

#include "tiering/plan/memory_layout.h"

namespace penstock::engine {
namespace {

// How long a rank sleeps before it looks again whether the others live: what a failure may cost to be seen.
constexpr timespec kLooksAgainAfter{0, 50'000'000};

uint64_t bytes_of_control() { return round_up(sizeof(SharedControl), kHugePageBytes); }

long futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

Status no_memory(uint64_t bytes, int error) {
  return errno_status(text("ranks: ", bytes_text(bytes), " of shared memory"), error,
                      "give the ranks a smaller host budget, or free memory of the machine or the control group");
}

}  // namespace

Result<std::unique_ptr<SharedMemory>> SharedMemory::make(const std::vector<uint64_t>& bytes_of_ranks) {
  auto memory = std::unique_ptr<SharedMemory>(new SharedMemory());
  uint64_t bytes = bytes_of_control();
  for (uint64_t each : bytes_of_ranks) bytes += round_up(each, kHugePageBytes);
  memory->descriptor_ = ::memfd_create("penstock-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory->descriptor_ < 0) return no_memory(bytes, errno);
  if (::ftruncate(memory->descriptor_, static_cast<off_t>(bytes)) != 0) return no_memory(bytes, errno);
  // Nobody can take away what others have mapped.
  if (::fcntl(memory->descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return no_memory(bytes, errno);
  }
  PENSTOCK_TRY(memory->map(bytes_of_ranks));
  new (memory->control_) SharedControl();
  return memory;
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::attach(int descriptor,
                                                           const std::vector<uint64_t>& bytes_of_ranks) {
  auto memory = std::unique_ptr<SharedMemory>(new SharedMemory());
  memory->descriptor_ = descriptor;
  PENSTOCK_TRY(memory->map(bytes_of_ranks));
  return memory;
}

Status SharedMemory::map(const std::vector<uint64_t>& bytes_of_ranks) {
  mapped_bytes_ = bytes_of_control();
  for (uint64_t each : bytes_of_ranks) mapped_bytes_ += round_up(each, kHugePageBytes);
  void* mapped = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) return no_memory(mapped_bytes_, errno);
  mapped_ = static_cast<std::byte*>(mapped);
  // Worth something only where the system has huge pages for shared memory; a refusal costs nothing.
  (void)::madvise(mapped, mapped_bytes_, MADV_HUGEPAGE);
  (void)::madvise(mapped, mapped_bytes_, MADV_DONTFORK);
  control_ = reinterpret_cast<SharedControl*>(mapped_);
  uint64_t at = bytes_of_control();
  for (uint64_t each : bytes_of_ranks) {
    areas_.emplace_back(mapped_ + at, each);
    at += round_up(each, kHugePageBytes);
  }
  return Status();
}

SharedMemory::~SharedMemory() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status SharedMemory::populate(uint32_t rank) const {
  const uint64_t offset = static_cast<uint64_t>(areas_[rank].data() - mapped_);
  if (areas_[rank].empty()) return Status();
  const auto bytes = static_cast<off_t>(areas_[rank].size());
  while (::fallocate(descriptor_, 0, static_cast<off_t>(offset), bytes) != 0) {
    if (errno != EINTR) return no_memory(areas_[rank].size(), errno);
  }
  return Status();
}

void SharedMemory::ring(uint32_t channel) const {
  control_->bells[channel].fetch_add(1, std::memory_order_seq_cst);
  futex(control_->bells[channel], FUTEX_WAKE, INT_MAX, nullptr);
}

void SharedMemory::ring_all() const {
  for (uint32_t channel = 0; channel < kChannels; ++channel) ring(channel);
}

void SharedMemory::listen(uint32_t channel, uint32_t heard) const {
  futex(control_->bells[channel], FUTEX_WAIT, heard, &kLooksAgainAfter);
}

Status SharedMemory::died(uint32_t rank) const {
  const uint64_t step = control().ranks[rank].step.load(std::memory_order_relaxed);
  return Status(Code::kEnvironment,
                text(name_of(rank), " died ", step == 0 ? "before its first step" : text("in step ", step)));
}

std::string SharedMemory::name_of(uint32_t rank) const {
  return hosts_.empty() ? text("rank ", rank) : text("rank ", rank, " on ", hosts_[rank]);
}

void SharedMemory::fail(const Status& why) const {
  SharedFailure& failure = control_->failure;
  uint32_t none = SharedFailure::none;
  if (!failure.state.compare_exchange_strong(none, SharedFailure::writing)) return;
  const std::string& message = why.message();
  failure.code = static_cast<uint32_t>(why.code());
  failure.bytes = static_cast<uint32_t>(std::min(message.size(), failure.message.size()));
  std::memcpy(failure.message.data(), message.data(), failure.bytes);
  failure.state.store(SharedFailure::written, std::memory_order_release);
  ring_all();
}

Status SharedMemory::failure() const {
  const SharedFailure& failure = control_->failure;
  uint32_t state = failure.state.load(std::memory_order_acquire);
  if (state == SharedFailure::none) return Status();
  // A rank may die while it writes: nobody then learns what it had to say, but all end.
  for (int looks = 0; state == SharedFailure::writing && looks < 100; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    state = failure.state.load(std::memory_order_acquire);
  }
  const std::string remedy = "start all ranks again: they go on from the last step that all of them have";
  if (state == SharedFailure::writing) {
    return Status(Code::kEnvironment, "ranks: one of them has failed", remedy);
  }
  const size_t bytes = std::min<size_t>(failure.bytes, failure.message.size());
  return Status(failure.code == 0 ? Code::kEnvironment : static_cast<Code>(failure.code),
                std::string(failure.message.data(), bytes), remedy);
}

}  // namespace penstock::engine
