// AdapterMerge adds adapters to the weights that they belong to: W + scale x B A, in fp32.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/trainer/model.h"

namespace penstock::trainer {

class AdapterMerge {
 public:
  // `model` outlives it.
  explicit AdapterMerge(const Model& model);

  // The unit with the adapters of this unit's weights, if it has any.
  std::optional<uint32_t> adapters_of(uint32_t unit) const { return adapters_.at(unit); }

  // Elements of a unit of adapters. All of them come before add(), and before those of another unit.
  void take(uint32_t adapters, uint64_t first, std::span<const float> values);
  // Adds them to elements [first, first + values.size()) of the unit that they belong to.
  void add(uint32_t unit, uint64_t first, std::span<float> values);

 private:
  // What is added to a matrix, as rows x rank by rank x columns.
  struct Product {
    std::vector<float> left, right;
  };
  Product product_of(const ModelUnit& adapters, const ModelParameter& matrix) const;

  const Model& model_;
  std::vector<std::optional<uint32_t>> adapters_;  // by unit
  std::optional<uint32_t> taken_;                  // whose values there are
  std::vector<float> values_;
  std::array<std::optional<Product>, kWeightRoles> products_;
};

}  // namespace penstock::trainer
