#include "cpu_optim/gradient.h"

#include <algorithm>
#include <cstring>

#include "cpu_optim/flush_scope.h"
#include "cpu_optim/kernels.h"
#include "tiering/check.h"

namespace penstock::cpu_optim {
namespace {

// A cast of a block or more has left the caches before it is read.
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
  const bool streams = elements >= kStreamElements && reinterpret_cast<uintptr_t>(target) % 64 == 0;
  kernel(source, target, whole, streams);
#if defined(__x86_64__)
  if (streams) _mm_sfence();
#endif
  if (rest_elements == 0) return;
  const Rest rest_source(source + whole * bytes_of(source_dtype), rest_elements * bytes_of(source_dtype));
  Rest rest_target;
  kernel(rest_source.bytes, rest_target.bytes, kGroupElements, /*streams=*/false);
  std::memcpy(target + whole * bytes_of(target_dtype), rest_target.bytes, rest_elements * bytes_of(target_dtype));
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
