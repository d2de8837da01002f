// KeyValues remembers what the tokens of several sequences gave one block's attention, so that a next token needs
// nothing of those before it but this.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "runtime/trainer/model.h"

namespace penstock::trainer {

class KeyValues {
 public:
  // `most`: tokens of each sequence. The memory is taken here, in two tensors of key_values_bytes() / layers / 2.
  KeyValues(const Model& model, std::span<const uint64_t> most, const at::Device& device);

  struct Seen {
    at::Tensor keys, values;  // [tokens, kv_heads, size], of all tokens so far
  };
  // The next tokens of a sequence, [tokens, kv_heads, size]. REQUIRES: there is room.
  Seen append(size_t sequence, const at::Tensor& keys, const at::Tensor& values);

 private:
  struct Place {
    int64_t first = 0, count = 0, most = 0;
  };
  at::Tensor keys_, values_;
  std::vector<Place> places_;
};

// Of all of a model's blocks.
uint64_t key_values_bytes(const Model& model, std::span<const uint64_t> most);

}  // namespace penstock::trainer
