// What is asked of arrays before they are written to; for this folder alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace penstock::cpu_optim {

struct Array {
  const void* first = nullptr;
  uint64_t elements = 0;
  uint64_t element_bytes = 0;

  uint64_t begin() const { return reinterpret_cast<uintptr_t>(first); }
  uint64_t bytes() const { return elements * element_bytes; }
};

// Every array of elements lies somewhere, ends before memory does, and shares no byte with another.
inline bool are_separate(std::span<const Array> arrays) {
  const auto lies_somewhere = [](const Array& a) {
    return a.elements == 0 || (a.first != nullptr && a.elements <= (~uint64_t{0} - a.begin()) / a.element_bytes);
  };
  const auto overlap = [](const Array& a, const Array& b) {
    return a.begin() < b.begin() + b.bytes() && b.begin() < a.begin() + a.bytes();
  };
  if (!std::all_of(arrays.begin(), arrays.end(), lies_somewhere)) return false;
  for (size_t i = 0; i < arrays.size(); ++i) {
    for (size_t j = i + 1; j < arrays.size(); ++j) {
      if (arrays[i].elements != 0 && arrays[j].elements != 0 && overlap(arrays[i], arrays[j])) return false;
    }
  }
  return true;
}

}  // namespace penstock::cpu_optim
