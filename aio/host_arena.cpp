#include "aio/host_arena.h"

#include <linux/mman.h>
#include <sys/mman.h>
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

std::span<std::byte> map(uint64_t bytes, int flags) {
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (mapping == MAP_FAILED) return {};
  return {static_cast<std::byte*>(mapping), bytes};
}

std::span<std::byte> map_explicit_huge(uint64_t bytes) {
  if (free_huge_page_bytes() < bytes) return {};
  const std::span<std::byte> mapping = map(bytes, MAP_HUGETLB | MAP_HUGE_2MB);
  if (mapping.empty()) return {};
  if (populate(mapping) == 0) return mapping;
  munmap(mapping.data(), mapping.size());  // the control group allows fewer than the machine has
  return {};
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

Result<std::unique_ptr<HostArena>> HostArena::make(uint64_t size_bytes, PageKind best) {
  if (size_bytes == 0) return Status(Code::kUsage, "host arena: 0 B", "give it memory: --budget host=");
  const uint64_t bytes = round_up(size_bytes, kHugePageBytes);
  auto arena = [](auto... parts) { return Result(std::unique_ptr<HostArena>(new HostArena(parts...))); };

  if (best == PageKind::explicit_huge) {
    const std::span<std::byte> mapping = map_explicit_huge(bytes);
    if (!mapping.empty()) return arena(mapping, mapping, PageKind::explicit_huge);
  }

  const AvailableMemory available = AvailableMemory::now();
  const std::string needed = text("host arena: ", bytes, " B (", bytes_text(bytes), ") needed");
  if (bytes > available.bytes) {
    return Status(Code::kDoesNotFit,
                  text(needed, ", ", available.bytes, " B (", bytes_text(available.bytes), ") available by ",
                       available.limited_by),
                  text("lower --budget host= by at least ", bytes_text(bytes - available.bytes)));
  }
  // One huge page more, so that the memory can be aligned to one.
  const std::span<std::byte> mapping = map(bytes + kHugePageBytes, 0);
  if (mapping.empty()) return errno_status(needed, errno, "lower --budget host=, or raise ulimit -v");
  const auto address = reinterpret_cast<uintptr_t>(mapping.data());
  const std::span<std::byte> memory = mapping.subspan(round_up(address, kHugePageBytes) - address, bytes);
  const bool huge = best != PageKind::small && madvise(memory.data(), memory.size(), MADV_HUGEPAGE) == 0;
  if (best == PageKind::small) madvise(memory.data(), memory.size(), MADV_NOHUGEPAGE);
  if (const int error = populate(memory); error != 0) {
    munmap(mapping.data(), mapping.size());
    return errno_status(needed, error, "lower --budget host=");
  }
  // Where memory is fragmented the kernel may have used small pages; it can collapse them into huge ones.
  if (huge && count_huge_bytes(memory) < memory.size()) madvise(memory.data(), memory.size(), kCollapse);
  const PageKind kind = huge && count_huge_bytes(memory) > 0 ? PageKind::transparent_huge : PageKind::small;
  return arena(mapping, memory, kind);
}

HostArena::HostArena(std::span<std::byte> mapping, std::span<std::byte> memory, PageKind pages)
    : mapping_(mapping),
      memory_(memory),
      pages_(pages),
      huge_bytes_(count_huge_bytes(memory)),
      budget_(Tier::host, memory.size()) {
  madvise(mapping_.data(), mapping_.size(), MADV_DONTFORK);
}

HostArena::~HostArena() { munmap(mapping_.data(), mapping_.size()); }

Result<std::span<std::byte>> HostArena::take(const std::string& name, uint64_t bytes) {
  const uint64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kAlignmentBytes;
  const uint64_t begin = round_up(used_bytes_, alignment);
  const uint64_t padded = round_up(bytes, kAlignmentBytes);
  PENSTOCK_TRY(budget_.take(name, begin - used_bytes_ + padded));
  used_bytes_ = begin + padded;
  return memory_.subspan(begin, bytes);
}

std::string HostArena::description() const {
  std::string out = text(bytes_text(memory_.size()), " on ", name_of(pages_));
  if (pages_ == PageKind::transparent_huge) out += text(" (", huge_bytes_ * 100 / memory_.size(), " %)");
  return out;
}

}  // namespace penstock::aio
