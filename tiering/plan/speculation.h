// Whether the next step speculates. While gradients keep striking, every speculative update is redone and its traffic
// paid twice, so speculation pauses until they stop.
#pragma once

#include <cstdint>

namespace penstock {

class SpeculationPolicy {
 public:
  // Two strikes in a row are taken for a trend: with strikes of 10 % of the steps, that is one pause in a hundred.
  static constexpr uint32_t kPauseAfter = 2;

  bool speculate() const { return strikes_running_ < kPauseAfter; }
  void learn(bool struck) { strikes_running_ = struck ? strikes_running_ + 1 : 0; }

 private:
  uint32_t strikes_running_ = 0;
};

}  // namespace penstock
