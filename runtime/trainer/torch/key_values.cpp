#include "runtime/trainer/torch/key_values.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/ops/empty.h>

#include "runtime/trainer/torch/tensors.h"
#include "tiering/check.h"

namespace penstock::trainer {

KeyValues::KeyValues(const Model& model, std::span<const uint64_t> most, const at::Device& device) {
  int64_t all = 0;
  for (const uint64_t tokens : most) {
    places_.push_back({.first = all, .most = static_cast<int64_t>(tokens)});
    all += static_cast<int64_t>(tokens);
  }
  const ModelConfig& config = model.config;
  const at::TensorOptions options = at::TensorOptions(scalar_type(model.dtype)).device(device);
  for (at::Tensor* of : {&keys_, &values_}) *of = at::empty({all, config.kv_heads, config.head_size}, options);
}

KeyValues::Seen KeyValues::append(size_t sequence, const at::Tensor& keys, const at::Tensor& values) {
  Place& place = places_.at(sequence);
  const int64_t added = keys.size(0);
  CHECK(place.count + added <= place.most, "sequence ", sequence, ": ", place.count, " tokens and ", added,
        " more, room for ", place.most);
  keys_.narrow(0, place.first + place.count, added).copy_(keys);
  values_.narrow(0, place.first + place.count, added).copy_(values);
  place.count += added;
  return {keys_.narrow(0, place.first, place.count), values_.narrow(0, place.first, place.count)};
}

uint64_t key_values_bytes(const Model& model, std::span<const uint64_t> most) {
  uint64_t tokens = 0;
  for (const uint64_t of : most) tokens += of;
  const ModelConfig& config = model.config;
  return tokens * 2 * config.layers * config.kv_heads * config.head_size * bytes_of(model.dtype);
}

}  // namespace penstock::trainer
