// The limit that memory sets: the fastest of several loops that move the same bytes as a kernel and compute next to
// nothing.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tiering/tier.h"

namespace penstock::bench {

// Anonymous memory of 2 MiB pages, touched once. Stays until the process ends.
inline std::byte* huge_memory(uint64_t bytes) {
  constexpr uint64_t kHugePage = 2 * kMiB;
  const uint64_t length = round_up(bytes, kHugePage) + kHugePage;
  void* raw = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    std::fprintf(stderr, "penstock: memory for a benchmark: %llu B refused\ntry: --quick\n",
                 static_cast<unsigned long long>(length));
    std::exit(3);
  }
  auto* memory = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(raw), kHugePage));
  madvise(memory, length - kHugePage, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return memory;
}

// Streams of so many bytes per element.
struct ByteMix {
  struct Stream {
    std::byte* memory;
    uint64_t element_bytes;
  };
  std::vector<Stream> changed;  // read and written in place
  std::vector<Stream> read;
  std::vector<Stream> written;

  double bytes_per_element() const {
    double sum = 0;
    for (const Stream& s : changed) sum += 2 * static_cast<double>(s.element_bytes);
    for (const Stream& s : read) sum += static_cast<double>(s.element_bytes);
    for (const Stream& s : written) sum += static_cast<double>(s.element_bytes);
    return sum;
  }
};

// How a loop asks for lines ahead (0: leaves it to the hardware), writes what it has not read, and goes through 64
// elements: stream by stream, or a line of each stream in turn.
struct MoveShape {
  uint64_t prefetch_elements;
  bool streams;
  bool in_turn;
};
constexpr MoveShape kMoveShapes[] = {{0, true, false},    {0, false, false},  {128, true, false}, {128, false, false},
                                     {128, true, true},   {128, false, true}, {256, true, false}, {512, true, false},
                                     {512, false, false}, {512, true, true},  {1024, true, false}};

// Moves the elements [begin, end), 64 at a time: a line for every byte of a stream's elements.
#if defined(__x86_64__)
class Avx512Lines {
 public:
  explicit Avx512Lines(MoveShape shape) : shape_(shape) {}

  __attribute__((target("avx512f"))) void move(const ByteMix& mix, uint64_t begin, uint64_t end) {
    uint64_t longest = 0;
    for (const auto* streams : {&mix.changed, &mix.read, &mix.written}) {
      for (const auto& s : *streams) longest = std::max(longest, s.element_bytes);
    }
    for (uint64_t i = begin; i < end; i += 64) {
      if (shape_.in_turn) {
        for (uint64_t line = 0; line < longest; ++line) move_lines(mix, i, line, line + 1);
      } else {
        move_lines(mix, i, 0, longest);
      }
    }
    asm volatile("" ::"v"(seen_));
    _mm_sfence();
  }

 private:
  // Of the elements from `i` on, the lines [first, end) of each stream that has them.
  __attribute__((target("avx512f"), always_inline)) void move_lines(const ByteMix& mix, uint64_t i, uint64_t first,
                                                                    uint64_t end) {
    const __m512i one = _mm512_set1_epi32(1);
    for (const auto& s : mix.changed) {
      for (uint64_t line = first; line < std::min(end, s.element_bytes); ++line) {
        std::byte* at = asked(s, i, line);
        _mm512_store_si512(at, _mm512_add_epi32(_mm512_load_si512(at), one));
      }
    }
    for (const auto& s : mix.read) {
      for (uint64_t line = first; line < std::min(end, s.element_bytes); ++line) {
        seen_ = _mm512_or_si512(seen_, _mm512_load_si512(asked(s, i, line)));
      }
    }
    for (const auto& s : mix.written) {
      for (uint64_t line = first; line < std::min(end, s.element_bytes); ++line) {
        std::byte* at = s.memory + i * s.element_bytes + line * 64;
        if (shape_.streams) {
          _mm512_stream_si512(reinterpret_cast<__m512i*>(at), one);
        } else {
          _mm512_store_si512(at, one);
        }
      }
    }
  }

  std::byte* asked(const ByteMix::Stream& s, uint64_t i, uint64_t line) const {
    std::byte* at = s.memory + i * s.element_bytes + line * 64;
    if (shape_.prefetch_elements != 0) __builtin_prefetch(at + shape_.prefetch_elements * s.element_bytes);
    return at;
  }

  const MoveShape shape_;
  __m512i seen_ = {};
};
#endif

// Without AVX-512: words, as the compiler vectorises them.
inline void move_words(const ByteMix& mix, MoveShape shape, uint64_t begin, uint64_t end) {
  uint64_t seen = 0;
  for (uint64_t i = begin; i < end; i += 64) {
    for (const auto& s : mix.changed) {
      auto* words = reinterpret_cast<uint64_t*>(s.memory + i * s.element_bytes);
      for (uint64_t w = 0; w < 8 * s.element_bytes; ++w) {
        if (shape.prefetch_elements != 0 && w % 8 == 0)
          __builtin_prefetch(words + w + shape.prefetch_elements * s.element_bytes / 8);
        words[w] += 1;
      }
    }
    for (const auto& s : mix.read) {
      auto* words = reinterpret_cast<const uint64_t*>(s.memory + i * s.element_bytes);
      for (uint64_t w = 0; w < 8 * s.element_bytes; ++w) seen |= words[w];
    }
    for (const auto& s : mix.written) {
      auto* words = reinterpret_cast<uint64_t*>(s.memory + i * s.element_bytes);
      for (uint64_t w = 0; w < 8 * s.element_bytes; ++w) words[w] = 1;
    }
  }
  asm volatile("" ::"r"(seen));
}

inline void move(const ByteMix& mix, MoveShape shape, uint64_t begin, uint64_t end) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Avx512Lines(shape).move(mix, begin, end);
#endif
  move_words(mix, shape, begin, end);
}

}  // namespace penstock::bench
