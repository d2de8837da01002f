#include "tests/fuzz/memory_limit.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// The allocator's, which there is one of.
std::atomic<uint64_t> live_bytes{0}, limit_bytes{kNoLimit}, refused_bytes{0};

bool may_take(size_t bytes) {
  const uint64_t limit = limit_bytes, live = live_bytes;
  if (live <= limit && bytes <= limit - live) return true;
  if (refused_bytes == 0) refused_bytes = bytes;
  return false;
}

void* taken(void* memory) {
  live_bytes += malloc_usable_size(memory);
  return memory;
}

void give_back(void* memory) {
  live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  void* memory = may_take(bytes) ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return taken(memory);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  void* memory = may_take(bytes) ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
  return memory == nullptr ? nullptr : taken(memory);
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t& quietly) noexcept { return operator new(bytes, quietly); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { give_back(memory); }
void operator delete(void* memory, size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, size_t) noexcept { give_back(memory); }

// Buffers come from here; the linker is told to --wrap it.
extern "C" {
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return may_take(bytes) ? __real_aligned_alloc(alignment, bytes) : nullptr;
}
}

namespace penstock::fuzz {

MemoryLimit::MemoryLimit(uint64_t bytes) {
  ::refused_bytes = 0;
  limit_bytes = live_bytes + bytes;
}

MemoryLimit::~MemoryLimit() { limit_bytes = kNoLimit; }

uint64_t MemoryLimit::refused_bytes() const { return ::refused_bytes; }

}  // namespace penstock::fuzz
