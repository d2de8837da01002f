#include "cpu_optim/spans.h"

#include <cmath>

#include "cpu_optim/flush_scope.h"
#include "cpu_optim/separate.h"
#include "cpu_optim/tile_update.h"

namespace penstock::cpu_optim {
namespace {

Status refusal(OptimizerKind kind, const std::string& what, const char* remedy) {
  return Status(Code::kUsage, text(name_of(kind), ": ", what), remedy);
}

// The moment that an optimizer has is as long as its weight, one that it has not is empty.
Status check_length(OptimizerKind kind, const char* name, uint64_t length, uint64_t wanted) {
  if (length == wanted) return Status();
  return refusal(kind, text(name, ": ", length, " elements, not ", wanted),
                 "spans are as long as the weight, or empty where the optimizer has no use for them");
}

template <class T>
Array array_of(std::span<T> span) {
  return {span.data(), span.size(), sizeof(T)};
}

}  // namespace

Status step(OptimizerKind kind, const Hyper& hyper, uint64_t number, const Spans& spans) {
  const FlushScope flush;  // coefficients, too, are rounded to nearest whatever the caller's mode
  const StateForm form{kind, MasterForm::same, MomentForm::fp32, Dtype::fp32, Dtype::fp32};
  const uint64_t elements = spans.weight.size();
  PENSTOCK_TRY(validate(kind, hyper));
  if (number == 0) return refusal(kind, "step 0", "steps count from 1");
  if (!std::isfinite(spans.gradient_scale)) {
    return refusal(kind, text("gradient_scale: ", spans.gradient_scale), "a finite number");
  }
  TileView tile;
  tile.elements = elements;
  tile.weight = PlaneView::in_place(std::as_writable_bytes(spans.weight).data());
  tile.gradient = std::as_bytes(spans.gradient).data();
  uint64_t momenta = 0, variances = 0;
  size_t plane = 0;
  for (const Plane& p : resting_planes(form)) {
    (p.role == Role::momentum ? momenta : variances) = elements;
    const std::span<float> moment = p.role == Role::momentum ? spans.momentum : spans.variance;
    tile.planes[plane++] = PlaneView::in_place(std::as_writable_bytes(moment).data());
  }
  PENSTOCK_TRY(check_length(kind, "gradient", spans.gradient.size(), elements));
  PENSTOCK_TRY(check_length(kind, "momentum", spans.momentum.size(), momenta));
  PENSTOCK_TRY(check_length(kind, "variance", spans.variance.size(), variances));
  const Array arrays[] = {array_of(spans.weight), array_of(spans.gradient), array_of(spans.momentum),
                          array_of(spans.variance)};
  if (!are_separate(arrays)) return refusal(kind, "spans overlap, or lie nowhere", "give each memory of its own");

  TileUpdater(form).update(tile, {make_coefficients(kind, hyper, number), spans.gradient_scale, /*seed=*/0, number});
  return Status();
}

}  // namespace penstock::cpu_optim
