// Small shapes of stores for tests.
#pragma once

#include <random>

#include "tiering/store/store_shape.h"

namespace penstock {

// `units` trainable units of `elements` elements with two parameters each, and a frozen one behind them.
inline StoreShape small_shape(uint32_t units, uint64_t elements, uint64_t tile_elements, StateForm form = {}) {
  Workload workload;
  workload.form = form;
  for (uint32_t u = 0; u < units; ++u) {
    std::string name = "h." + std::to_string(u);
    Unit unit;
    unit.name = name;
    unit.elements = elements;
    unit.parameters = {{name + ".attention", 0, elements / 2}, {name + ".mlp", elements / 2, elements - elements / 2}};
    workload.units.push_back(unit);
  }
  Unit frozen;
  frozen.name = "frozen";
  frozen.elements = elements;
  frozen.trainable = false;
  workload.units.push_back(frozen);
  return StoreShape::of(workload, TileMap(workload, tile_elements));
}

inline StoreShape random_shape(std::mt19937_64& random) {
  StateForm form;
  form.optimizer = static_cast<OptimizerKind>(random() % 5);
  form.moments = static_cast<MomentForm>(random() % 3);
  uint64_t elements = 2 + random() % (5 * kBlockElements);
  uint64_t tile_elements = (1 + random() % 4) * kBlockElements;
  return small_shape(1 + random() % 6, elements, tile_elements, form);
}

}  // namespace penstock
