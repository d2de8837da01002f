// SyntheticModel stands for a model in updates without a trainer. Its units have equal size, each a matrix and, if
// large enough, a norm and a bias. Initial values and gradients depend on the seed alone: cheap to compute and the same
// in every process.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tiering/unit.h"

namespace penstock::tools {

class SyntheticModel {
 public:
  // Of hyper-parameters, as trainers set them: norms and biases do not decay.
  enum Group : uint32_t { kMatrices, kVectors, kGroups };

  // `parameters` in units of at most `unit_elements`.
  SyntheticModel(uint64_t parameters, uint64_t unit_elements, uint64_t seed);

  const std::vector<Unit>& units() const { return units_; }
  uint64_t parameters() const { return parameters_; }
  static uint64_t usual_unit_elements(uint64_t parameters);

  // fp32 masters of a unit's elements from `first` on.
  void initial(uint32_t unit, uint64_t first, std::span<float> values) const;
  // The unit's bf16 gradient of a step. Valid as long as the model.
  std::span<const std::byte> gradient(uint64_t step, uint32_t unit) const;
  // The norm of all gradients of a step, about.
  double gradient_norm() const;

 private:
  const uint64_t parameters_;
  const uint64_t seed_;
  std::vector<Unit> units_;
  std::vector<uint16_t> pattern_;  // one unit and some; each step and unit begins elsewhere in it
};

}  // namespace penstock::tools
