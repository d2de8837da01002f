// The parameters that a program declares, as a workload of units: what stands between the C API and Engine.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace penstock::engine {

// The unit that the engine chooses.
constexpr uint32_t kUnitAutomatic = 0xffffffff;

struct EmbeddedParameter {
  std::string name;
  uint64_t elements = 0;
  uint32_t group = 0;
  Dtype dtype = Dtype::fp32;           // of `initial` and of the weights of every step
  const std::byte* initial = nullptr;  // while the store is made
  // Where those go: into memory of the program, out to its function, or nowhere.
  struct Weights {
    std::byte* into = nullptr;
    bool out = false;

    bool operator==(const Weights&) const = default;
  };
  Weights weights = {};
  uint32_t unit = kUnitAutomatic;
};

struct EmbeddedSettings {
  OptimizerKind optimizer = OptimizerKind::adamw;
  uint32_t micro_batches = 1;
  bool whole_steps = false;
  Clipping clipping;
};

struct EmbeddedModel {
  // Where a parameter lies. Its unit is also the number of its use in whole steps.
  struct Place {
    ParameterId id;
    uint64_t first_element = 0;
  };

  Workload workload;
  std::vector<Place> places;                   // by parameter
  std::vector<std::vector<uint32_t>> of_unit;  // the parameters of each unit, as their places ascend

  // Masters are fp32 and are the weights: what programs with 16-bit weights keep is rounded from them. Without whole
  // steps a large parameter is a unit of its own, and small ones share units, since a tile of a few elements costs the
  // drives as much as one of thousands.
  static Result<EmbeddedModel> of(std::span<const EmbeddedParameter> parameters, const EmbeddedSettings& settings);
};

}  // namespace penstock::engine
