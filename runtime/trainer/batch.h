// What one micro-batch is made of.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock::trainer {

constexpr int32_t kIgnored = -100;  // a target that nothing is learnt from

// Sequences of one length, one after another. targets[i] is what should follow tokens[i].
struct MicroBatch {
  int64_t sequences = 0;
  int64_t length = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  // Of each token its place in its document, where sequences are packed with several: 0 begins one. A token sees its
  // own document alone. Empty: every sequence is one document.
  std::vector<int32_t> positions = {};

  uint64_t supervised() const {
    uint64_t count = 0;
    for (int32_t target : targets) count += target != kIgnored;
    return count;
  }
};

}  // namespace penstock::trainer
