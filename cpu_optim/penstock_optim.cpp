#include "cpu_optim/penstock_optim.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <vector>

#include "cpu_optim/flush_scope.h"
#include "cpu_optim/gradient.h"
#include "cpu_optim/tile_update.h"
#include "tiering/arithmetic/optimizer.h"

namespace penstock::cpu_optim {
namespace {

constexpr int kRefused = 2;

std::atomic<Isa>& isa_in_use() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

bool is_dtype(int dtype) { return dtype == PENSTOCK_FP32 || dtype == PENSTOCK_BF16 || dtype == PENSTOCK_FP16; }

Dtype dtype_of(int dtype) {
  return dtype == PENSTOCK_FP32 ? Dtype::fp32 : dtype == PENSTOCK_BF16 ? Dtype::bf16 : Dtype::fp16;
}

std::byte* bytes_at(void* address) { return static_cast<std::byte*>(address); }

struct Array {
  const void* first = nullptr;
  uint64_t elements = 0;
  uint64_t element_bytes = 0;

  uint64_t begin() const { return reinterpret_cast<uintptr_t>(first); }
  uint64_t bytes() const { return elements * element_bytes; }
};

// Every array of elements lies somewhere, ends before memory does, and shares no byte with another.
bool are_separate(std::span<const Array> arrays) {
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

bool are_separate(const penstock_arrays& a, bool has_momentum, bool has_variance) {
  const auto bytes_of_one = [](int dtype) { return bytes_of(dtype_of(dtype)); };
  const Array arrays[] = {{a.master, a.elements, sizeof(float)},
                          {a.gradient, a.elements, bytes_of_one(a.gradient_dtype)},
                          {a.weight, a.weight == nullptr ? 0 : a.elements, bytes_of_one(a.weight_dtype)},
                          {a.momentum, has_momentum ? a.elements : 0, sizeof(float)},
                          {a.variance, has_variance ? a.elements : 0, sizeof(float)},
                          {a.gradient_square_sum, a.gradient_square_sum == nullptr ? 0u : 1u, sizeof(double)}};
  return are_separate(arrays);
}

int step(OptimizerKind kind, const penstock_arrays* arrays, const penstock_rates* rates, uint64_t number) {
  if (arrays == nullptr || rates == nullptr || number == 0) return kRefused;
  const FlushScope flush;  // coefficients, too, are rounded to nearest whatever the caller's mode
  const bool has_momentum = penstock::has_momentum(kind), has_variance = penstock::has_variance(kind);
  if (!is_dtype(arrays->gradient_dtype) || !std::isfinite(arrays->gradient_scale)) return kRefused;
  if (!are_separate(*arrays, has_momentum, has_variance)) return kRefused;
  StateForm form{kind, MasterForm::same, MomentForm::fp32, Dtype::fp32, dtype_of(arrays->gradient_dtype)};
  TileView tile;
  tile.elements = arrays->elements;
  tile.gradient = static_cast<const std::byte*>(arrays->gradient);
  size_t plane = 0;
  if (arrays->weight == nullptr) {
    tile.weight = PlaneView::in_place(bytes_at(arrays->master));
  } else {
    if (arrays->weight_dtype != PENSTOCK_BF16 && arrays->weight_dtype != PENSTOCK_FP16) return kRefused;
    form.master = MasterForm::full;
    form.weight = dtype_of(arrays->weight_dtype);
    tile.weight.target = bytes_at(arrays->weight);
    tile.planes[plane++] = PlaneView::in_place(bytes_at(arrays->master));
  }
  if (has_momentum) tile.planes[plane++] = PlaneView::in_place(bytes_at(arrays->momentum));
  if (has_variance) tile.planes[plane++] = PlaneView::in_place(bytes_at(arrays->variance));

  const Hyper hyper{rates->lr,       rates->beta1,     rates->beta2,         rates->eps,     rates->weight_decay,
                    rates->momentum, rates->dampening, rates->nesterov != 0, rates->lr_decay};
  if (!validate(kind, hyper).ok()) return kRefused;
  StepNumbers numbers;
  numbers.coefficients = make_coefficients(kind, hyper, number);
  numbers.gradient_scale = arrays->gradient_scale;
  numbers.step = number;
  TileNotes notes;
  std::vector<double> square_sums;
  if (arrays->gradient_square_sum != nullptr) square_sums.resize(ceil_div(tile.elements, kBlockElements));
  notes.square_sums = square_sums;
  TileUpdater(form, isa_in_use()).update(tile, numbers, notes);
  if (arrays->gradient_square_sum != nullptr) *arrays->gradient_square_sum = total(square_sums);
  return 0;
}

}  // namespace
}  // namespace penstock::cpu_optim

using penstock::OptimizerKind;
using penstock::cpu_optim::step;

extern "C" {

int penstock_adamw(const penstock_arrays* arrays, const penstock_rates* rates, uint64_t number) {
  return step(OptimizerKind::adamw, arrays, rates, number);
}
int penstock_adam(const penstock_arrays* arrays, const penstock_rates* rates, uint64_t number) {
  return step(OptimizerKind::adam, arrays, rates, number);
}
int penstock_adagrad(const penstock_arrays* arrays, const penstock_rates* rates, uint64_t number) {
  return step(OptimizerKind::adagrad, arrays, rates, number);
}
int penstock_lion(const penstock_arrays* arrays, const penstock_rates* rates, uint64_t number) {
  return step(OptimizerKind::lion, arrays, rates, number);
}
int penstock_sgd(const penstock_arrays* arrays, const penstock_rates* rates, uint64_t number) {
  return step(OptimizerKind::sgd, arrays, rates, number);
}

const char* penstock_optim_isa(void) { return penstock::cpu_optim::name_of(penstock::cpu_optim::isa_in_use()); }

int penstock_optim_use_isa(const char* name) {
  using namespace penstock::cpu_optim;
  const auto isa = name == nullptr ? std::nullopt : isa_named(name);
  const auto available = available_isas();
  if (!isa || std::find(available.begin(), available.end(), *isa) == available.end()) return kRefused;
  isa_in_use() = *isa;
  return 0;
}

}  // extern "C"
