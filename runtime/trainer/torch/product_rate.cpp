#include "runtime/trainer/torch/product_rate.h"

#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <chrono>

#include "runtime/trainer/torch/tensors.h"

namespace penstock::trainer {
namespace {

constexpr int64_t kSideLeast = 256, kSideMost = 4096;
constexpr double kLongEnough_s = 0.01;
constexpr int kRounds = 3;

}  // namespace

double product_flops(Accelerator& accelerator, Dtype dtype) {
  const at::TensorOptions options = at::TensorOptions(scalar_type(dtype)).device(accelerator.device());
  double most = 0;
  for (int64_t side = kSideLeast; side <= kSideMost; side *= 2) {
    const at::Tensor factor = at::full({side, side}, 0.5, options);
    double fastest_s = 0;
    for (int round = 0; round < kRounds; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      const at::Tensor product = at::mm(factor, factor);
      if (!accelerator.finish().ok()) return most;
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      fastest_s = round == 0 ? seconds : std::min(fastest_s, seconds);
    }
    const auto operations = 2.0 * static_cast<double>(side) * static_cast<double>(side) * static_cast<double>(side);
    most = std::max(most, operations / fastest_s);
    if (fastest_s >= kLongEnough_s) break;
  }
  return most;
}

}  // namespace penstock::trainer
