#include "runtime/trainer/torch/functions.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "runtime/trainer/counter_random.h"
#include "tiering/check.h"

namespace penstock::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double epsilon) {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor scale = at::rsqrt((wide * wide).mean(-1, true).add_(epsilon));
    context->save_for_backward({x, weight, scale});
    return (wide * scale).to(x.scalar_type()).mul(weight);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &weight = saved[1], &scale = saved[2];
    const at::Tensor normed = saved[0].to(at::kFloat).mul(scale), wide = gradients[0].to(at::kFloat);
    at::Tensor of_x, of_weight;
    if (context->needs_input_grad(1)) {
      at::Tensor products = wide * normed;
      of_weight = products.reshape({-1, products.size(-1)}).sum(0).to(weight.scalar_type());
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor inner = wide * weight.to(at::kFloat);
      const at::Tensor along = (inner * normed).mean(-1, true);
      of_x = inner.sub(normed * along).mul_(scale).to(saved[0].scalar_type());
    }
    return {of_x, of_weight, at::Tensor()};
  }
};

at::Tensor turned(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  const int64_t pairs = x.size(-1) / 2;
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor first = wide.narrow(-1, 0, pairs), second = wide.narrow(-1, pairs, pairs);
  return at::cat(std::vector<at::Tensor>{first * cosine - second * sine, second * cosine + first * sine}, -1)
      .to(x.scalar_type());
}

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosine,
                            const at::Tensor& sine) {
    // Constants that outlive the graph: not saved as activations are.
    context->saved_data["cosine"] = cosine;
    context->saved_data["sine"] = sine;
    return turned(x, cosine, sine);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor cosine = context->saved_data["cosine"].toTensor(), sine = context->saved_data["sine"].toTensor();
    return {turned(gradients[0], cosine, sine.neg()), at::Tensor(), at::Tensor()};
  }
};

// Kept where the stream's number is at or above p * 2^32.
uint32_t drop_threshold(double p) { return static_cast<uint32_t>(std::lround(p * 4294967296.0)); }

at::Tensor masked(const at::Tensor& given, double p, uint64_t key) {
  CHECK(given.is_cpu(), "dropout is drawn in host memory only");
  const at::Tensor x = given.contiguous();
  at::Tensor y = at::empty_like(x);
  const uint32_t threshold = drop_threshold(p);
  const float scale = static_cast<float>(1 / (1 - p));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropped", [&] {
    const scalar_t* from = x.const_data_ptr<scalar_t>();
    scalar_t* to = y.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const bool kept = stream_bits(key, static_cast<uint64_t>(i)) >= threshold;
        to[i] = kept ? static_cast<scalar_t>(static_cast<float>(from[i]) * scale) : scalar_t(0);
      }
    });
  });
  return y;
}

struct Drop : torch::autograd::Function<Drop> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double p, int64_t key) {
    context->saved_data["p"] = p;
    context->saved_data["key"] = key;
    return masked(x, p, static_cast<uint64_t>(key));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const double p = context->saved_data["p"].toDouble();
    const auto key = static_cast<uint64_t>(context->saved_data["key"].toInt());
    return {masked(gradients[0], p, key), at::Tensor(), at::Tensor()};
  }
};

// [length, length], true where the row's position sees the column's.
at::Tensor seen(int64_t length, uint32_t window, const at::Device& device) {
  const at::Tensor position = at::arange(length, at::TensorOptions(at::kLong).device(device));
  const at::Tensor behind = position.unsqueeze(1) - position.unsqueeze(0);
  at::Tensor mask = behind.ge(0);
  return window == 0 ? mask : mask.logical_and_(behind.lt(static_cast<int64_t>(window)));
}

// All weights of attention at once: the one way to drop some of them by number.
at::Tensor attended_openly(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const AttentionShape& shape) {
  at::Tensor scores = at::matmul(query, key.transpose(-1, -2)).to(at::kFloat).mul(shape.scale);
  scores = scores.masked_fill(seen(query.size(-2), shape.window, query.device()).logical_not(),
                              -std::numeric_limits<float>::infinity());
  const at::Tensor weights = at::softmax(scores, -1).to(value.scalar_type());
  return at::matmul(dropped(weights, shape.dropout, shape.dropout_key), value);
}

// The queries that share a key are given to attention as the heads of a batch of their own, whose key they share by a
// stride of 0: attention on CPUs would repeat keys and values otherwise.
at::Tensor attended_at_once(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionShape& shape) {
  const int64_t batch = query.size(0), length = query.size(1), heads = query.size(2), size = query.size(3);
  const int64_t groups = key.size(2), share = heads / groups;
  const std::vector<int64_t> grouped = {batch * groups, share, length, size};
  auto shared = [&](const at::Tensor& x) {
    return x.transpose(1, 2).reshape({batch * groups, 1, length, size}).expand(grouped);
  };
  at::Tensor q, k, v;
  if (share == 1) {
    q = query.transpose(1, 2), k = key.transpose(1, 2), v = value.transpose(1, 2);
  } else {
    q = query.view({batch, length, groups, share, size}).permute({0, 2, 3, 1, 4}).reshape(grouped);
    k = shared(key), v = shared(value);
  }
  at::Tensor out;
  if (shape.dropout > 0) {
    out = attended_openly(q, k, v, shape);
  } else if (shape.window == 0 || shape.window >= length) {
    out = at::scaled_dot_product_attention(q, k, v, {}, 0, /*is_causal=*/true, shape.scale);
  } else {
    out = at::scaled_dot_product_attention(q, k, v, seen(length, shape.window, q.device()), 0, /*is_causal=*/false,
                                           shape.scale);
  }
  return out.view({batch, heads, length, size}).transpose(1, 2).reshape({batch, length, heads * size});
}

// Each document by itself: no mask, and no score that would be thrown away.
at::Tensor attended_by_document(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                const AttentionShape& shape) {
  const int64_t batch = query.size(0), length = query.size(1);
  const at::Tensor q = query.flatten(0, 1), k = key.flatten(0, 1), v = value.flatten(0, 1);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < shape.documents.size(); ++i) {
    const int64_t first = shape.documents[i];
    const int64_t end = i + 1 < shape.documents.size() ? shape.documents[i + 1] : batch * length;
    auto own = [&](const at::Tensor& x) { return x.narrow(0, first, end - first).unsqueeze(0); };
    AttentionShape alone = shape;
    alone.documents = {};
    alone.dropout_key = stream_key(shape.dropout_key, static_cast<uint64_t>(first));
    parts.push_back(attended_at_once(own(q), own(k), own(v), alone).squeeze(0));
  }
  return at::cat(parts, 0).view({batch, length, -1});
}

// One token after `keys.size(0) - 1` others. The queries that share a key are rows of one product with it.
at::Tensor attended_by_last(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            const AttentionShape& shape) {
  const int64_t heads = query.size(1), size = query.size(2), groups = keys.size(1), all = keys.size(0);
  const int64_t visible = shape.window == 0 ? all : std::min<int64_t>(all, shape.window);
  auto by_group = [&](const at::Tensor& x) { return x.narrow(0, all - visible, visible).transpose(0, 1).unsqueeze(0); };
  const at::Tensor q = query.reshape({1, groups, heads / groups, size});
  return at::scaled_dot_product_attention(q, by_group(keys), by_group(values), {}, 0, /*is_causal=*/false, shape.scale)
      .reshape({1, heads * size});
}

at::Tensor attended_after_past(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const AttentionShape& shape) {
  const int64_t all = query.size(1);
  const at::Tensor q = query.squeeze(0), k = key.squeeze(0), v = value.squeeze(0);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < shape.documents.size(); ++i) {
    const int64_t first = shape.documents[i];
    const int64_t count = (i + 1 < shape.documents.size() ? shape.documents[i + 1] : all) - first;
    auto own = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    const KeyValues::Seen seen = shape.past->append(shape.sequences[i], own(k), own(v));
    if (seen.keys.size(0) == count) {
      parts.push_back(
          attended_at_once(own(q).unsqueeze(0), own(k).unsqueeze(0), own(v).unsqueeze(0), shape).squeeze(0));
    } else {
      CHECK(count == 1, count, " tokens in the middle of a sequence");
      parts.push_back(attended_by_last(own(q), seen.keys, seen.values, shape));
    }
  }
  return at::cat(parts, 0).unsqueeze(0);
}

// Cosine and sine of `count` positions from `first` on, in a sequence that ends with them.
std::pair<at::Tensor, at::Tensor> turns_of(const ModelConfig& config, int64_t first, int64_t count) {
  std::vector<float> frequencies = rope_frequencies(config, static_cast<uint64_t>(first + count));
  const at::Tensor frequency =
      at::from_blob(frequencies.data(), {static_cast<int64_t>(frequencies.size())}, at::kFloat);
  const at::Tensor angles = at::outer(at::arange(first, first + count, at::kFloat), frequency).unsqueeze(1);
  return {at::cos(angles) * config.rope.attention_factor, at::sin(angles) * config.rope.attention_factor};
}

}  // namespace

void prepare_kernels() {
  static const bool once = [] {
    const at::Tensor few = at::arange(8, at::kFloat);  // too few for a second thread
    for (const at::Tensor& x : {few, few.to(at::kDouble)})
      for (auto function : {at::exp, at::cos, at::sin, at::tanh, at::erf, at::log1p}) (void)function(x);
    return true;
  }();
  (void)once;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return RmsNorm::apply(x, weight, epsilon);
}

Positions make_positions(const ModelConfig& config, int64_t length) {
  prepare_kernels();
  Positions positions;
  if (config.block != BlockKind::llama) return positions;
  std::tie(positions.cosine, positions.sine) = turns_of(config, 0, length);
  return positions;
}

Positions make_positions(const ModelConfig& config, const MicroBatch& batch) {
  Positions positions = make_positions(config, batch.length);
  if (batch.positions.empty()) return positions;
  positions.places = at::empty({batch.sequences, batch.length}, at::TensorOptions(at::kLong));
  std::copy(batch.positions.begin(), batch.positions.end(), positions.places.mutable_data_ptr<int64_t>());
  for (size_t i = 0; i < batch.positions.size(); ++i)
    if (batch.positions[i] == 0) positions.documents.push_back(static_cast<int64_t>(i));
  if (!positions.cosine.defined()) return positions;
  auto placed = [&](const at::Tensor& table) {
    return table.index_select(0, positions.places.flatten()).view({batch.sequences, batch.length, 1, -1});
  };
  positions.cosine = placed(positions.cosine), positions.sine = placed(positions.sine);
  return positions;
}

Positions make_positions(const ModelConfig& config, std::span<const TokenRun> runs) {
  prepare_kernels();
  Positions positions;
  std::vector<at::Tensor> places, cosines, sines;
  int64_t at = 0;
  for (const TokenRun& run : runs) {
    positions.documents.push_back(at);
    positions.sequences.push_back(run.sequence);
    at += run.count;
    places.push_back(at::arange(run.first, run.first + run.count, at::kLong));
    if (config.block != BlockKind::llama) continue;
    const auto [cosine, sine] = turns_of(config, run.first, run.count);
    cosines.push_back(cosine), sines.push_back(sine);
  }
  positions.places = at::cat(places, 0).unsqueeze(0);
  if (!cosines.empty()) positions.cosine = at::cat(cosines, 0), positions.sine = at::cat(sines, 0);
  return positions;
}

at::Tensor rotated(const at::Tensor& x, const Positions& positions) {
  return Rotate::apply(x, positions.cosine, positions.sine);
}

at::Tensor dropped(const at::Tensor& x, double p, uint64_t key) {
  return p == 0 ? x : Drop::apply(x, p, static_cast<int64_t>(key));
}

at::Tensor attended(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionShape& shape) {
  if (shape.past != nullptr) return attended_after_past(query, key, value, shape);
  return shape.documents.empty() ? attended_at_once(query, key, value, shape)
                                 : attended_by_document(query, key, value, shape);
}

}  // namespace penstock::trainer
