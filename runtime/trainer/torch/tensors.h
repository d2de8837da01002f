// Views of units' weights as tensors, and what all computations share.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <span>
#include <vector>

#include "runtime/trainer/engine_verbs.h"
#include "runtime/trainer/model.h"

namespace penstock::trainer {

// What a use computes with, by role; undefined where the model has no such parameter. They are views: nothing is
// copied.
struct WeightTensors {
  using ByRole = std::array<at::Tensor, kWeightRoles>;

  ByRole weights;
  ByRole adapter_a, adapter_b;  // of what is added to the weight; undefined where nothing is
  Adapters adapters = {};

  const at::Tensor& operator[](WeightRole role) const { return weights[static_cast<uint32_t>(role)]; }
  at::Tensor& operator[](WeightRole role) { return weights[static_cast<uint32_t>(role)]; }
  at::Tensor& of(const ModelParameter& parameter) {
    ByRole& all = parameter.factor == Factor::none ? weights : parameter.factor == Factor::a ? adapter_a : adapter_b;
    return all[static_cast<uint32_t>(parameter.role)];
  }
};

at::ScalarType scalar_type(Dtype dtype);
Dtype dtype_of(const at::Tensor& tensor);

// The use's parameters in `weights`, which are those of its units in their order. What of another unit's parameters has
// no part in the computation is among them and does no harm.
WeightTensors views_of(const Model& model, std::span<const UnitWeights> weights, const at::Device& device);

// What the host has made, on the device; itself where that is the host. Nothing waits for it.
at::Tensor placed(const at::Tensor& host, const at::Device& device);
at::Tensor placed(std::span<const int64_t> values, const at::Device& device);

// Bytes on the device as a tensor: nothing is copied.
at::Tensor tensor_over(std::span<const std::byte> bytes, const at::Device& device);

// The bytes of a contiguous tensor, where it lies.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);
std::span<std::byte> bytes_of(at::Tensor& tensor);

}  // namespace penstock::trainer
