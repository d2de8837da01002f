#include "cpu_optim/gradient.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu_optim/flush_scope.h"
#include "cpu_optim/kernels.h"
#include "cpu_optim/streams.h"
#include "tiering/check.h"

namespace penstock::cpu_optim {
namespace {

// What is written of a block or more has left the caches before it is read.
constexpr uint64_t kStreamElements = kBlockElements;

size_t index_of(Dtype dtype) {
  CHECK(static_cast<size_t>(dtype) < kGradientDtypes, "gradients are fp32, bf16 or fp16, not ", name_of(dtype));
  return static_cast<size_t>(dtype);
}

// A ragged rest of fewer than kGroupElements values, filled up with zeros.
struct Rest {
  alignas(64) std::byte bytes[kGroupElements * sizeof(float)] = {};

  Rest() = default;
  Rest(const std::byte* source, uint64_t length_bytes) { std::memcpy(bytes, source, length_bytes); }
};

}  // namespace

GradientKernels::GradientKernels(Isa isa) : kernels_(&kernels_of(isa)) {}

void GradientKernels::accumulate(Dtype source_dtype, const std::byte* source, float* target, uint64_t elements) const {
  FlushScope flush;
  const AccumulateKernel kernel = kernels_->accumulate[index_of(source_dtype)];
  const uint64_t whole = round_down(elements, kGroupElements), rest_elements = elements - whole;
  kernel(source, target, whole);
  if (rest_elements == 0) return;
  const Rest rest_source(source + whole * bytes_of(source_dtype), rest_elements * bytes_of(source_dtype));
  float rest_target[kGroupElements] = {};
  std::memcpy(rest_target, target + whole, rest_elements * sizeof(float));
  kernel(rest_source.bytes, rest_target, kGroupElements);
  std::memcpy(target + whole, rest_target, rest_elements * sizeof(float));
}

void GradientKernels::cast(Dtype source_dtype, const std::byte* source, Dtype target_dtype, std::byte* target,
                           uint64_t elements) const {
  FlushScope flush;  // for its rounding: numbers come out as they are, denormals too
  const CastKernel kernel = kernels_->cast[index_of(source_dtype)][index_of(target_dtype)];
  const uint64_t whole = round_down(elements, kGroupElements), rest_elements = elements - whole;
  const bool streams = elements >= kStreamElements && may_stream_to(target);
  kernel(source, target, whole, streams);
  if (streams) end_streams();
  if (rest_elements == 0) return;
  const Rest rest_source(source + whole * bytes_of(source_dtype), rest_elements * bytes_of(source_dtype));
  Rest rest_target;
  kernel(rest_source.bytes, rest_target.bytes, kGroupElements, /*streams=*/false);
  std::memcpy(target + whole * bytes_of(target_dtype), rest_target.bytes, rest_elements * bytes_of(target_dtype));
}

void GradientKernels::sum(Dtype source_dtype, std::span<const std::byte* const> sources, Dtype target_dtype,
                          std::byte* target, uint64_t elements) const {
  CHECK(!sources.empty(), "sum of no source");
  FlushScope flush;
  const SumKernel kernel = kernels_->sum[index_of(source_dtype)][index_of(target_dtype)];
  const uint64_t source_bytes = bytes_of(source_dtype), target_bytes = bytes_of(target_dtype);
  std::vector<const std::byte*> places(sources.begin(), sources.end());
  uint64_t done = 0;
  auto add_up = [&](uint64_t count, bool streams) {
    for (size_t i = 0; i < places.size(); ++i) places[i] = sources[i] + done * source_bytes;
    kernel(places.data(), places.size(), target + done * target_bytes, count, streams);
    done += count;
  };
  auto add_up_some = [&](uint64_t count) {  // fewer than kGroupElements
    if (count == 0) return;
    std::vector<Rest> rests;
    for (size_t i = 0; i < places.size(); ++i)
      rests.emplace_back(sources[i] + done * source_bytes, count * source_bytes);
    for (size_t i = 0; i < places.size(); ++i) places[i] = rests[i].bytes;
    Rest sums;
    kernel(places.data(), places.size(), sums.bytes, kGroupElements, /*streams=*/false);
    std::memcpy(target + done * target_bytes, sums.bytes, count * target_bytes);
    done += count;
  };
  const uint64_t beyond = bytes_past_stream_alignment(target);
  const bool streams = elements >= kStreamElements && beyond % target_bytes == 0;
  if (streams && beyond != 0) add_up_some((kStreamAlignmentBytes - beyond) / target_bytes);
  add_up(round_down(elements - done, kGroupElements), streams);
  if (streams) end_streams();
  add_up_some(elements - done);
}

void GradientKernels::square_sums(Dtype dtype, const std::byte* values, uint64_t elements,
                                  std::span<double> sums) const {
  CHECK(sums.size() >= ceil_div(elements, kBlockElements), "square_sums: ", sums.size(), " entries, ",
        ceil_div(elements, kBlockElements), " expected");
  FlushScope flush;
  const SquareSumKernel kernel = kernels_->square_sums[index_of(dtype)];
  for (uint64_t first = 0; first < elements; first += kBlockElements) {
    const uint64_t count = std::min(kBlockElements, elements - first), whole = round_down(count, kGroupElements);
    const std::byte* block = values + first * bytes_of(dtype);
    alignas(64) std::array<double, kSquareSumLanes> lanes{};
    kernel(block, whole, lanes.data());
    if (whole != count) {
      const Rest rest(block + whole * bytes_of(dtype), (count - whole) * bytes_of(dtype));
      kernel(rest.bytes, kGroupElements, lanes.data());
    }
    sums[first / kBlockElements] = sum_of_lanes(lanes);
  }
}

double sum_of_lanes(std::array<double, kSquareSumLanes> lanes) {
  for (size_t half = kSquareSumLanes / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

double total(std::span<const double> sums) {
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace penstock::cpu_optim
