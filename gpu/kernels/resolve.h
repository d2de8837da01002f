// Maps the description of a kernel to the struct that computes it. This is the only list of all kernels; the host's
// loops and the GPU's launches both use it.
#pragma once

#include <bit>
#include <variant>

#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/quantise.h"
#include "gpu/kernels/square_sums.h"
#include "gpu/kernels/update.h"

namespace penstock::gpu {

inline UpdatePlanes planes_of(const kernel::UpdateTile& tile) {
  UpdatePlanes planes;
  planes.form = tile.form;
  planes.numbers = tile.numbers;
  planes.step_key = arithmetic::step_key(tile.numbers.seed, tile.numbers.step);
  planes.weight = tile.weight;
  planes.gradient = tile.gradient;
  planes.elements = tile.elements;
  planes.first_element = tile.first_element;
  size_t place = 0;
  for (const Plane& plane : resting_planes(tile.form)) {
    std::byte* bytes = tile.planes[place++];
    CHECK(bytes != nullptr, "update: no address for plane ", name_of(plane.role));
    if (plane.role == Role::master) planes.master = reinterpret_cast<float*>(bytes);
    if (plane.role == Role::master_low) planes.master_low = reinterpret_cast<uint16_t*>(bytes);
    if (plane.role == Role::momentum) planes.momentum = bytes;
    if (plane.role == Role::variance) planes.variance = bytes;
    if (plane.role == Role::momentum_scale) planes.momentum_scale = reinterpret_cast<float*>(bytes);
    if (plane.role == Role::variance_scale) planes.variance_scale = reinterpret_cast<float*>(bytes);
  }
  return planes;
}

template <OptimizerKind kind, typename Run>
auto run_update(const UpdatePlanes& planes, const Run& run) {
  return planes.form.moments == MomentForm::int8 ? run(UpdateByteKernel<kind>{{planes}})
                                                 : run(UpdateKernel<kind>{{planes}});
}

template <typename Run>
auto run_update(const kernel::UpdateTile& tile, const Run& run) {
  CHECK(validate(tile.form).ok(), validate(tile.form).message());
  CHECK(tile.form.moments != MomentForm::int8 || tile.first_element % kMomentBlockElements == 0,
        "update: int8 moments at element ", tile.first_element);
  UpdatePlanes planes = planes_of(tile);
  switch (tile.form.optimizer) {
    case OptimizerKind::adamw:
      return run_update<OptimizerKind::adamw>(planes, run);
    case OptimizerKind::adam:
      return run_update<OptimizerKind::adam>(planes, run);
    case OptimizerKind::adagrad:
      return run_update<OptimizerKind::adagrad>(planes, run);
    case OptimizerKind::lion:
      return run_update<OptimizerKind::lion>(planes, run);
    case OptimizerKind::sgd:
      return run_update<OptimizerKind::sgd>(planes, run);
  }
  CHECK(false, "optimizer ", static_cast<int>(tile.form.optimizer), " has no kernel");
  __builtin_unreachable();
}

// So that a kernel can divide by shifting.
inline uint32_t block_shift(uint32_t block_elements) {
  CHECK(block_elements >= 64 && block_elements <= 4096 && std::has_single_bit(block_elements), "quantising blocks of ",
        block_elements, " elements");
  return static_cast<uint32_t>(std::countr_zero(block_elements));
}

// Calls `run` with the struct for `kernel` and returns its result. kernel::Fill has none, because memset does it.
template <typename Run>
auto run_kernel(const Kernel& kernel, const Run& run) {
  struct Resolve {
    const Run& run;
    auto operator()(const kernel::Fill& fill) const { return run(fill); }
    auto operator()(const kernel::Cast& cast) const { return run(CastKernel{cast}); }
    auto operator()(const kernel::Accumulate& accumulate) const { return run(AccumulateKernel{accumulate}); }
    auto operator()(const kernel::Scale& scale) const { return run(ScaleKernel{scale}); }
    auto operator()(const kernel::SquareSums& sums) const { return run(SquareSumsKernel{sums}); }
    auto operator()(const kernel::RoundStochastic& round) const { return run(RoundStochasticKernel{round}); }
    auto operator()(const kernel::UpdateTile& tile) const { return run_update(tile, run); }
    auto operator()(const kernel::Quantise& quantise) const {
      return run(QuantiseKernel{{quantise}, block_shift(quantise.block_elements)});
    }
    auto operator()(const kernel::Dequantise& dequantise) const {
      return run(DequantiseKernel{{dequantise}, block_shift(dequantise.block_elements)});
    }
  };
  return std::visit(Resolve{run}, kernel);
}

}  // namespace penstock::gpu
