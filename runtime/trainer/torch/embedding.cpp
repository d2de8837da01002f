#include "runtime/trainer/torch/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <map>
#include <vector>

namespace penstock::trainer {
namespace {

// Where dropout is drawn in the embedding's use, which is number 0.
constexpr uint32_t kEmbeddingSite = 0;

// As the model's own class has it: a number of the model's dtype.
double embedding_scale(const ModelConfig& config, at::ScalarType type) {
  return at::scalar_tensor(config.embedding_scale, at::TensorOptions(type)).item<double>();
}

// The gradient of rows [first, first + count) of the tokens' table: `values`, one for each of the tokens, added up.
at::Tensor rows_of_tokens(std::span<const int64_t> tokens, const at::Tensor& values, int64_t first, int64_t count,
                          at::ScalarType type) {
  const at::Device device = values.device();
  const auto is_here = [&](int64_t token) { return token >= first && token < first + count; };
  // Few of the rows have a token: only these are added up.
  std::map<int64_t, int64_t> met;  // row of the table to its place among those
  for (int64_t token : tokens)
    if (is_here(token)) met.emplace(token - first, 0);
  std::vector<int64_t> of_table, of_tokens, into;
  for (auto& [row, place] : met) place = static_cast<int64_t>(of_table.size()), of_table.push_back(row);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (is_here(tokens[i])) of_tokens.push_back(static_cast<int64_t>(i)), into.push_back(met[tokens[i] - first]);
  at::Tensor rows = at::zeros({count, values.size(1)}, values.options().dtype(type));
  if (into.empty()) return rows;
  at::Tensor sums = at::zeros({static_cast<int64_t>(of_table.size()), values.size(1)}, values.options());
  sums.index_add_(0, placed(into, device), values.index_select(0, placed(of_tokens, device)));
  return rows.index_copy_(0, placed(of_table, device), sums.to(type));
}

}  // namespace

at::Tensor token_tensor(const MicroBatch& batch) {
  at::Tensor tokens = at::empty({batch.sequences, batch.length}, at::TensorOptions(at::kLong));
  std::copy(batch.tokens.begin(), batch.tokens.end(), tokens.mutable_data_ptr<int64_t>());
  return tokens;
}

at::Tensor embedding_forward(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& tokens,
                             const at::Tensor& places, const DropoutKeys& keys) {
  c10::AutoGradMode not_recorded(false);
  const at::Tensor& rows = weights[WeightRole::tokens];
  at::Tensor hidden =
      rows.index_select(0, placed(tokens.reshape({-1}), rows.device())).view({tokens.size(0), tokens.size(1), -1});
  if (const at::Tensor& table = weights[WeightRole::positions]; table.defined())
    hidden = hidden + (places.defined() ? table.index_select(0, places.flatten()).view_as(hidden)
                                        : table.narrow(0, 0, tokens.size(1)));
  if (config.embedding_scale != 1) hidden = hidden * embedding_scale(config, hidden.scalar_type());
  return dropped(hidden, keys.training ? config.embedding_dropout : 0, keys.of(0, kEmbeddingSite));
}

Status embedding_backward(const Model& model, const at::Tensor& tokens, const at::Tensor& places, at::Tensor gradient,
                          const DropoutKeys& keys, const EndChunks& chunks, const TakeRows& take) {
  c10::AutoGradMode not_recorded(false);
  const ModelConfig& config = model.config;
  gradient = dropped(gradient, keys.training ? config.embedding_dropout : 0, keys.of(0, kEmbeddingSite));
  at::Tensor wide = gradient.to(at::kFloat);
  if (config.embedding_scale != 1) wide = wide * embedding_scale(config, gradient.scalar_type());
  const at::ScalarType type = scalar_type(model.dtype);
  Status status;
  if (is_trained(model, WeightRole::tokens)) {
    const at::Tensor all = tokens.reshape({-1}), values = as_rows(wide);
    const std::span<const int64_t> in_a_row(all.const_data_ptr<int64_t>(), static_cast<size_t>(all.numel()));
    for_runs(config.vocab, chunks.rows, [&](int64_t first, int64_t count) {
      if (status.ok()) status = take(WeightRole::tokens, first, rows_of_tokens(in_a_row, values, first, count, type));
    });
  }
  PENSTOCK_TRY(status);
  if (is_trained(model, WeightRole::positions)) {
    at::Tensor rows = at::zeros({config.positions, wide.size(2)}, wide.options());
    if (places.defined()) {
      rows.index_add_(0, places.flatten(), as_rows(wide));
    } else {
      for (int64_t sequence = 0; sequence < wide.size(0); ++sequence)
        rows.narrow(0, 0, wide.size(1)).add_(wide.select(0, sequence));
    }
    PENSTOCK_TRY(take(WeightRole::positions, 0, rows.to(type)));
  }
  return Status();
}

}  // namespace penstock::trainer
