#include "runtime/trainer/torch/tensors.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

namespace penstock::trainer {

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return at::kFloat;
    case Dtype::bf16:
      return at::kBFloat16;
    case Dtype::fp16:
      return at::kHalf;
    default:
      CHECK(false, "a model computes in fp32, bf16 or fp16");
      return at::kFloat;
  }
}

Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Dtype::fp32;
    case at::kBFloat16:
      return Dtype::bf16;
    case at::kHalf:
      return Dtype::fp16;
    default:
      CHECK(false, "gradients are fp32, bf16 or fp16");
      return Dtype::fp32;
  }
}

WeightTensors views_of(const Model& model, std::span<const UnitWeights> weights, const at::Device& device) {
  WeightTensors tensors;
  tensors.adapters = model.adapters.value_or(Adapters());
  const uint64_t element_bytes = bytes_of(model.dtype);
  const at::TensorOptions options = at::TensorOptions(scalar_type(model.dtype)).device(device);
  for (const UnitWeights& held : weights) {
    const ModelUnit& unit = model.units.at(held.unit);
    CHECK(held.elements >= unit.elements, "unit '", unit.name, "' was lent with ", held.elements, " elements, has ",
          unit.elements);
    CHECK(reinterpret_cast<uintptr_t>(held.bytes.data()) % 64 == 0, "unit '", unit.name,
          "' does not begin at a multiple of 64 B");
    for (const ModelParameter& parameter : unit.parameters) {
      auto* data = const_cast<std::byte*>(held.bytes.data()) + parameter.first_element * element_bytes;
      const std::vector<int64_t> shape(parameter.shape.begin(), parameter.shape.end());
      tensors.of(parameter) = at::from_blob(data, shape, /*deleter=*/{}, options, device);
    }
  }
  return tensors;
}

// From memory that is not pinned, a copy returns as soon as the source is free again.
at::Tensor placed(const at::Tensor& host, const at::Device& device) { return host.to(device, /*non_blocking=*/true); }

at::Tensor placed(std::span<const int64_t> values, const at::Device& device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(at::kLong));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return placed(tensor, device);
}

at::Tensor tensor_over(std::span<const std::byte> bytes, const at::Device& device) {
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(device);
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, /*deleter=*/{},
                       options, device);
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  CHECK(tensor.is_contiguous(), "bytes are taken of contiguous tensors");
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::span<std::byte> bytes_of(at::Tensor& tensor) {
  CHECK(tensor.is_contiguous(), "bytes are taken of contiguous tensors");
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace penstock::trainer
