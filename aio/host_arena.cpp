#include "aio/host_arena.h"

#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "aio/available_memory.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which libraries older than Linux 6.1 do not name

// Populates every page, or says what was missing. Otherwise the first touch might get the process killed.
int populate(std::span<std::byte> memory) {
  if (madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t i = 0; i < memory.size(); i += page) {
    *const_cast<volatile std::byte*>(&memory[i]) = std::byte{0};  // kernels before 5.14
  }
  return 0;
}

// The bytes of `memory` that lie on 2 MiB pages, according to the kernel.
uint64_t count_huge_bytes(std::span<std::byte> memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = begin + memory.size();
  std::ifstream in("/proc/self/smaps");
  uint64_t kib_in_all = 0;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    uintptr_t from, to;
    uint64_t kib;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) {
      inside = from < end && to > begin;
    } else if (inside && (std::sscanf(line.c_str(), "AnonHugePages: %" SCNu64, &kib) == 1 ||
                          std::sscanf(line.c_str(), "Private_Hugetlb: %" SCNu64, &kib) == 1)) {
      kib_in_all += kib;
    }
  }
  return std::min(kib_in_all * kKiB, memory.size());
}

// Where addresses are limited, those that are only reserved would be missed elsewhere.
uint64_t reservable_bytes() {
  constexpr uint64_t kMost = uint64_t{1} << 45;  // of the 2^47 that a process has
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? 0 : kMost;
}

// Addresses without memory.
std::span<std::byte> reserve(uint64_t bytes) {
  void* mapping = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return {};
  return {static_cast<std::byte*>(mapping), bytes};
}

// Gives memory at reserved addresses back.
void reserve_again(std::span<std::byte> memory) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  void* mapping = mmap(memory.data(), memory.size(), PROT_NONE, kFlags, -1, 0);
  CHECK(mapping == memory.data(), "addresses that are reserved are not given up");
}

bool take_explicit_huge(std::span<std::byte> memory) {
  if (free_huge_page_bytes() < memory.size()) return false;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB | MAP_HUGE_2MB;
  const bool taken = mmap(memory.data(), memory.size(), PROT_READ | PROT_WRITE, kFlags, -1, 0) == memory.data();
  if (taken && populate(memory) == 0) return true;
  reserve_again(memory);  // the control group allows fewer than the machine has
  return false;
}

std::string words_of_need(uint64_t bytes) { return text("host arena: ", bytes, " B (", bytes_text(bytes), ") needed"); }

Status refuse_more_than_available(uint64_t bytes, uint64_t needed_more) {
  const AvailableMemory available = AvailableMemory::now();
  if (needed_more <= available.bytes) return Status();
  return Status(Code::kDoesNotFit,
                text(words_of_need(bytes), ", ", available.bytes, " B (", bytes_text(available.bytes),
                     ") available by ", available.limited_by),
                text("free memory, or lower the host budget by at least ", bytes_text(needed_more - available.bytes)));
}

// Reserved addresses become memory. 0, or why not; then they are as they were.
int take_memory(std::span<std::byte> memory, PageKind best) {
  if (mprotect(memory.data(), memory.size(), PROT_READ | PROT_WRITE) != 0) return errno;
  madvise(memory.data(), memory.size(), best == PageKind::small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  const int error = populate(memory);
  if (error != 0) {
    reserve_again(memory);
    return error;
  }
  // Where memory is fragmented the kernel may have used small pages; it can collapse them into huge ones.
  if (best != PageKind::small && count_huge_bytes(memory) < memory.size()) {
    madvise(memory.data(), memory.size(), kCollapse);
  }
  return 0;
}

}  // namespace

const char* name_of(PageKind kind) {
  switch (kind) {
    case PageKind::explicit_huge:
      return "explicit 2 MiB pages";
    case PageKind::transparent_huge:
      return "transparent 2 MiB pages";
    case PageKind::small:
      return "small pages";
  }
  return "?";
}

Result<std::unique_ptr<HostArena>> HostArena::make(uint64_t size_bytes, PageKind best, uint64_t most_bytes) {
  if (size_bytes == 0) return Status(Code::kUsage, "host arena: 0 B", "give a host budget of 2 MiB or more");
  const uint64_t bytes = round_up(size_bytes, kHugePageBytes);
  auto arena = [](auto... parts) { return Result(std::unique_ptr<HostArena>(new HostArena(parts...))); };

  // One huge page more, so that the memory can be aligned to one.
  uint64_t reserved_bytes = std::max(bytes, round_up(std::min(most_bytes, reservable_bytes()), kHugePageBytes));
  std::span<std::byte> mapping = reserve(reserved_bytes + kHugePageBytes);
  if (mapping.empty() && reserved_bytes > bytes) {  // then it does not grow
    reserved_bytes = bytes;
    mapping = reserve(reserved_bytes + kHugePageBytes);
  }
  const char* remedy = "lower the host budget, or raise `ulimit -v`";
  if (mapping.empty()) {
    const int error = errno;
    PENSTOCK_TRY(refuse_more_than_available(bytes, bytes));
    return errno_status(words_of_need(bytes), error, remedy);
  }
  const auto address = reinterpret_cast<uintptr_t>(mapping.data());
  const std::span<std::byte> reserved = mapping.subspan(round_up(address, kHugePageBytes) - address, reserved_bytes);
  const std::span<std::byte> memory = reserved.first(bytes);
  if (best == PageKind::explicit_huge && take_explicit_huge(memory)) {
    return arena(mapping, reserved, bytes, PageKind::explicit_huge);
  }
  Status refused = refuse_more_than_available(bytes, bytes);
  if (refused.ok()) {
    const int error = take_memory(memory, best);
    if (error != 0) refused = errno_status(words_of_need(bytes), error, remedy);
  }
  if (!refused.ok()) {
    munmap(mapping.data(), mapping.size());
    return refused;
  }
  const bool huge = best != PageKind::small && count_huge_bytes(memory) > 0;
  return arena(mapping, reserved, bytes, huge ? PageKind::transparent_huge : PageKind::small);
}

HostArena::HostArena(std::span<std::byte> mapping, std::span<std::byte> reserved, uint64_t size_bytes, PageKind pages)
    : mapping_(mapping),
      reserved_(reserved),
      memory_(reserved.first(size_bytes)),
      pages_(pages),
      huge_bytes_(count_huge_bytes(memory_)),
      budget_(std::in_place, Tier::host, memory_.size()) {
  madvise(mapping_.data(), mapping_.size(), MADV_DONTFORK);
}

Status HostArena::grow(uint64_t size_bytes) {
  CHECK(used_bytes_ == 0, "an arena from which ", used_bytes_, " B were taken does not grow");
  const uint64_t bytes = round_up(size_bytes, kHugePageBytes);
  if (bytes <= memory_.size()) return Status();
  if (bytes > reserved_.size()) {
    return Status(Code::kDoesNotFit, text(words_of_need(bytes), ", ", reserved_.size(), " B (",
                                          bytes_text(reserved_.size()), ") reserved when it was made"));
  }
  const std::span<std::byte> added = reserved_.subspan(memory_.size(), bytes - memory_.size());
  if (pages_ != PageKind::explicit_huge || !take_explicit_huge(added)) {
    PENSTOCK_TRY(refuse_more_than_available(bytes, added.size()));
    if (const int error = take_memory(added, pages_); error != 0) return errno_status(words_of_need(bytes), error);
  }
  memory_ = reserved_.first(bytes);
  huge_bytes_ = count_huge_bytes(memory_);
  budget_.emplace(Tier::host, memory_.size());
  return Status();
}

HostArena::~HostArena() { munmap(mapping_.data(), mapping_.size()); }

Result<std::span<std::byte>> HostArena::take(const std::string& name, uint64_t bytes) {
  const uint64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kAlignmentBytes;
  const uint64_t begin = round_up(used_bytes_, alignment);
  const uint64_t padded = round_up(bytes, kAlignmentBytes);
  PENSTOCK_TRY(budget_->take(name, begin - used_bytes_ + padded));
  used_bytes_ = begin + padded;
  return memory_.subspan(begin, bytes);
}

std::string HostArena::description() const {
  std::string out = text(bytes_text(memory_.size()), " on ", name_of(pages_));
  if (pages_ == PageKind::transparent_huge) out += text(" (", huge_bytes_ * 100 / memory_.size(), " %)");
  return out;
}

}  // namespace penstock::aio
