// One optimizer step over spans of the caller's, for embedding: everything else in this folder is for tiles.
//
//   cpu_optim::step(OptimizerKind::adamw, hyper, step, {.weight = p, .gradient = g, .momentum = m, .variance = v});
#pragma once

#include <span>

#include "cpu_optim/tile_update.h"

namespace penstock::cpu_optim {

// fp32 all through. Spans that the optimizer has no use for stay empty; the others are equally long.
struct Spans {
  std::span<float> weight;
  std::span<const float> gradient;
  std::span<float> momentum = {};
  std::span<float> variance = {};
  float gradient_scale = 1;
};

inline void step(OptimizerKind kind, const Hyper& hyper, uint64_t number, const Spans& spans) {
  const StateForm form{kind, MasterForm::same, MomentForm::fp32, Dtype::fp32, Dtype::fp32};
  TileView tile;
  tile.elements = spans.weight.size();
  tile.weight = PlaneView::in_place(std::as_writable_bytes(spans.weight).data());
  CHECK(spans.gradient.size() == tile.elements, spans.gradient.size(), " gradients for ", tile.elements, " weights");
  tile.gradient = std::as_bytes(spans.gradient).data();
  size_t plane = 0;
  for (const Plane& p : resting_planes(form)) {
    const std::span<float> moment = p.role == Role::momentum ? spans.momentum : spans.variance;
    CHECK(moment.size() == tile.elements, name_of(p.role), ": ", moment.size(), " of ", tile.elements, " elements");
    tile.planes[plane++] = PlaneView::in_place(std::as_writable_bytes(moment).data());
  }
  StepNumbers numbers{make_coefficients(kind, hyper, number), spans.gradient_scale, /*seed=*/0, number};
  TileUpdater(form).update(tile, numbers);
}

}  // namespace penstock::cpu_optim
