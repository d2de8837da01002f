#include "tools/nvme/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace penstock::tools {

// Below 2^kSubBits each value has a bucket of its own; above, the first bits after the leading one choose it.
unsigned LatencyHistogram::bucket_of(uint64_t nanoseconds) {
  const unsigned width = static_cast<unsigned>(std::bit_width(nanoseconds));
  if (width <= kSubBits) return static_cast<unsigned>(nanoseconds);
  const unsigned shift = width - kSubBits - 1;
  return (shift << kSubBits) + static_cast<unsigned>(nanoseconds >> shift);
}

uint64_t LatencyHistogram::upper_bound(unsigned bucket) {
  if (bucket < (2u << kSubBits)) return bucket;
  const unsigned shift = (bucket >> kSubBits) - 1;
  const uint64_t leading = bucket - (shift << kSubBits);
  return ((leading + 1) << shift) - 1;
}

void LatencyHistogram::add(uint64_t nanoseconds) {
  ++counts_[bucket_of(nanoseconds)];
  ++count_;
  sum_ += nanoseconds;
  max_ = std::max(max_, nanoseconds);
}

void LatencyHistogram::add(const LatencyHistogram& other) {
  for (unsigned bucket = 0; bucket < kBuckets; ++bucket) counts_[bucket] += other.counts_[bucket];
  count_ += other.count_;
  sum_ += other.sum_;
  max_ = std::max(max_, other.max_);
}

double LatencyHistogram::mean_us() const {
  return count_ > 0 ? static_cast<double>(sum_) / static_cast<double>(count_) / 1e3 : 0;
}

double LatencyHistogram::percentile_us(double share) const {
  const uint64_t wanted = static_cast<uint64_t>(std::ceil(share * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (unsigned bucket = 0; bucket < kBuckets; ++bucket) {
    seen += counts_[bucket];
    if (counts_[bucket] == 0 || seen < wanted) continue;
    return static_cast<double>(std::min(upper_bound(bucket), max_)) / 1e3;  // never above what is printed as the most
  }
  return 0;
}

std::vector<std::pair<double, uint64_t>> LatencyHistogram::by_powers_of_two() const {
  std::array<uint64_t, 65> counts{};
  for (unsigned bucket = 0; bucket < kBuckets; ++bucket) {
    if (counts_[bucket] > 0) counts[static_cast<size_t>(std::bit_width(upper_bound(bucket)))] += counts_[bucket];
  }
  std::vector<std::pair<double, uint64_t>> out;
  for (size_t width = 0; width < counts.size(); ++width) {
    if (counts[width] > 0) out.push_back({std::ldexp(1e-3, static_cast<int>(width)), counts[width]});
  }
  return out;
}

}  // namespace penstock::tools
