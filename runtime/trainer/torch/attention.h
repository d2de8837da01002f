// Causal attention of a block's queries to its keys and values: within sequences or packed documents, with windows,
// bounded scores, dropout, or keys and values that are remembered from before.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "runtime/trainer/torch/key_values.h"

namespace penstock::trainer {

struct AttentionShape {
  double scale = 1;
  double softcap = 0;   // scores x become softcap * tanh(x / softcap); 0: they stay
  uint32_t window = 0;  // positions that one sees, itself included; 0: all before it
  double dropout = 0;   // of the attention's weights
  uint64_t dropout_key = 0;
  std::span<const int64_t> documents = {};  // where each begins, among all tokens; empty: every sequence is one
  // What came before documents, each of which is a whole beginning or one token.
  KeyValues* past = nullptr;
  std::span<const size_t> sequences = {};  // of the past, by document
};

// Causal attention within documents of query [batch, length, heads, size] to key and value [batch, length, kv_heads,
// size]; gives [batch, length, heads * size]. Scores
// are never in memory as a whole; a window's mask is, where nothing is bounded or dropped.
at::Tensor attended(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionShape& shape);

}  // namespace penstock::trainer
