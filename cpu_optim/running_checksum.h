// The checksum of tiering/arithmetic/checksum.h over bytes that arrive in pieces. For this folder alone.
#pragma once

#include <cstring>

#include "cpu_optim/kernels.h"
#include "tiering/check.h"

namespace penstock::cpu_optim {

class RunningChecksum {
 public:
  // REQUIRES: every piece but the last is whole stripes.
  void add(const Kernels& kernels, const std::byte* bytes, uint64_t length_bytes) {
    DCHECK(length_bytes_ % kChecksumStripeBytes == 0, "a piece after a ragged one");
    const uint64_t stripe = length_bytes_ / kChecksumStripeBytes;
    const uint64_t whole_stripes = length_bytes / kChecksumStripeBytes;
    kernels.checksum(lanes_, bytes, whole_stripes, stripe);
    if (const uint64_t rest_bytes = length_bytes % kChecksumStripeBytes; rest_bytes != 0) {
      std::byte last[kChecksumStripeBytes] = {};
      std::memcpy(last, bytes + whole_stripes * kChecksumStripeBytes, rest_bytes);
      kernels.checksum(lanes_, last, 1, stripe + whole_stripes);
    }
    length_bytes_ += length_bytes;
  }

  uint64_t finish(uint64_t seed) const { return finish_checksum(lanes_, length_bytes_, seed); }

 private:
  ChecksumLanes lanes_{};
  uint64_t length_bytes_ = 0;
};

}  // namespace penstock::cpu_optim
