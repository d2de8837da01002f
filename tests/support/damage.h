// What happens to stored bytes: the same small accidents for every parser's test.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace penstock {

// A bit flipped, a run overwritten, bytes moved, cut off or appended; several of these at times.
inline std::vector<std::byte> damaged(std::vector<std::byte> bytes, std::mt19937_64& random) {
  for (uint64_t accidents = 1 + random() % 3; accidents > 0 && !bytes.empty(); --accidents) {
    size_t at = random() % bytes.size();
    size_t length = std::min<size_t>(1 + random() % 64, bytes.size() - at);
    switch (random() % 5) {
      case 0:
        bytes[at] ^= std::byte{1} << (random() % 8);
        break;
      case 1:
        for (size_t i = 0; i < length; ++i) bytes[at + i] = static_cast<std::byte>(random());
        break;
      case 2:
        for (size_t i = 0; i < length; ++i) bytes[at + i] = static_cast<std::byte>(random() % 2 ? 0xff : 0);
        break;
      case 3:
        bytes.resize(at);
        break;
      default:
        bytes.insert(bytes.end(), length, static_cast<std::byte>(random()));
        break;
    }
  }
  return bytes;
}

}  // namespace penstock
