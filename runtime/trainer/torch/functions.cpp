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
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "runtime/trainer/counter_random.h"
#include "runtime/trainer/torch/tensors.h"
#include "tiering/check.h"

namespace penstock::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double epsilon,
                            bool less_one) {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor scale = at::rsqrt((wide * wide).mean(-1, true).add_(epsilon));
    context->save_for_backward({x, weight, scale});
    context->saved_data["less_one"] = less_one;
    if (less_one) return (wide * scale).mul_(factors(weight, less_one)).to(x.scalar_type());
    return (wide * scale).to(x.scalar_type()).mul(weight);
  }

  static at::Tensor factors(const at::Tensor& weight, bool less_one) {
    const at::Tensor wide = weight.to(at::kFloat);
    return less_one ? wide.add(1) : wide;
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
      const at::Tensor inner = wide * factors(weight, context->saved_data["less_one"].toBool());
      const at::Tensor along = (inner * normed).mean(-1, true);
      of_x = inner.sub(normed * along).mul_(scale).to(saved[0].scalar_type());
    }
    return {of_x, of_weight, at::Tensor(), at::Tensor()};
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

struct ProductWithoutValues : torch::autograd::Function<ProductWithoutValues> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& matrix,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({x, matrix});
    context->saved_data["has_bias"] = bias.has_value();
    return at::empty({x.size(0), matrix.size(1)}, x.options());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &matrix = saved[1], &gradient = gradients[0];
    at::Tensor of_x, of_matrix;
    if (context->needs_input_grad(0)) of_x = gradient.mm(matrix.t());
    if (context->needs_input_grad(1)) {
      const bool by_columns = matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
      of_matrix = by_columns ? gradient.t().mm(x).t() : x.t().mm(gradient);
    }
    // Autograd sums it to the bias' shape.
    return {of_x, of_matrix, context->saved_data["has_bias"].toBool() ? gradient : at::Tensor()};
  }
};

// Kept where the stream's number is at or above p * 2^32.
uint32_t drop_threshold(double p) { return static_cast<uint32_t>(std::lround(p * 4294967296.0)); }

// arithmetic::mix() of numbers below 2^32, in int64: products wrap, and their low halves are those of 32 bits.
at::Tensor mixed(at::Tensor x) {
  constexpr int64_t kLowHalf = 0xffff'ffff;
  x = x.bitwise_xor(x.bitwise_right_shift(16));
  x = x.mul_(int64_t{0x7feb'352d}).bitwise_and_(kLowHalf);
  x = x.bitwise_xor(x.bitwise_right_shift(15));
  x = x.mul_(int64_t{0x846c'a68b}).bitwise_and_(kLowHalf);
  return x.bitwise_xor(x.bitwise_right_shift(16));
}

}  // namespace

at::Tensor stream_bits_of(uint64_t key, int64_t first, int64_t count, const at::Device& device) {
  const at::Tensor index = at::arange(first, first + count, at::TensorOptions(at::kLong).device(device));
  const auto low = static_cast<int64_t>(key & 0xffff'ffff), high = static_cast<int64_t>(key >> 32);
  const at::Tensor once = mixed(index.bitwise_and(int64_t{0xffff'ffff}).bitwise_xor(low));
  return mixed(once.bitwise_xor(index.bitwise_right_shift(32)).bitwise_xor(high));
}

namespace {

// The same by LibTorch's own operations, on any device: a run of elements at a time, whose numbers are 8 B each.
at::Tensor masked_by_tensors(const at::Tensor& x, double p, uint64_t key) {
  constexpr int64_t kRun = 1 << 24;
  at::Tensor y = at::empty_like(x);
  const at::Tensor from = x.view({-1}), to = y.view({-1});
  const auto threshold = static_cast<int64_t>(drop_threshold(p));
  const double scale = static_cast<float>(1 / (1 - p));
  for (int64_t first = 0; first < from.numel(); first += kRun) {
    const int64_t count = std::min(kRun, from.numel() - first);
    const at::Tensor dropped = stream_bits_of(key, first, count, x.device()).lt(threshold);
    const at::Tensor values = from.narrow(0, first, count).to(at::kFloat).mul(scale).masked_fill_(dropped, 0);
    to.narrow(0, first, count).copy_(values);
  }
  return y;
}

at::Tensor masked(const at::Tensor& given, double p, uint64_t key) {
  const at::Tensor x = given.contiguous();
  if (!x.is_cpu()) return masked_by_tensors(x, p, key);
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

// Of `count` positions from `first` on, in a sequence that ends with them.
Positions::Turns turns_of(const Rope& rope, uint32_t head_size, int64_t first, int64_t count) {
  std::vector<float> frequencies = rope_frequencies(rope, head_size, static_cast<uint64_t>(first + count));
  const at::Tensor frequency =
      at::from_blob(frequencies.data(), {static_cast<int64_t>(frequencies.size())}, at::kFloat);
  const at::Tensor angles = at::outer(at::arange(first, first + count, at::kFloat), frequency).unsqueeze(1);
  return {at::cos(angles) * rope.attention_factor, at::sin(angles) * rope.attention_factor};
}

Positions::Turns on_device(const Positions::Turns& turns, const at::Device& device) {
  return {placed(turns.cosine, device), placed(turns.sine, device)};
}

// The tables of a model's layers, each made by `make(rope)`.
template <typename Make>
void set_turns(const ModelConfig& config, Positions& positions, const Make& make) {
  if (config.block != BlockKind::llama) return;
  positions.turns = make(config.rope);
  positions.window_turns = config.window_rope ? make(*config.window_rope) : positions.turns;
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

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, NormWeight meaning) {
  return RmsNorm::apply(x, weight, epsilon, meaning == NormWeight::factor_less_one);
}

Positions make_positions(const ModelConfig& config, int64_t length, const at::Device& device) {
  prepare_kernels();
  Positions positions;
  set_turns(config, positions,
            [&](const Rope& rope) { return on_device(turns_of(rope, config.head_size, 0, length), device); });
  return positions;
}

Positions make_positions(const ModelConfig& config, const MicroBatch& batch, const at::Device& device) {
  Positions positions = make_positions(config, batch.length, device);
  if (batch.positions.empty()) return positions;
  const std::vector<int64_t> places(batch.positions.begin(), batch.positions.end());
  positions.places = placed(places, device).view({batch.sequences, batch.length});
  for (size_t i = 0; i < batch.positions.size(); ++i)
    if (batch.positions[i] == 0) positions.documents.push_back(static_cast<int64_t>(i));
  if (!positions.turns.cosine.defined()) return positions;
  auto by_token = [&](const at::Tensor& table) {
    return table.index_select(0, positions.places.flatten()).view({batch.sequences, batch.length, 1, -1});
  };
  for (Positions::Turns* turns : {&positions.turns, &positions.window_turns})
    *turns = {by_token(turns->cosine), by_token(turns->sine)};
  return positions;
}

Positions make_positions(const ModelConfig& config, std::span<const TokenRun> runs, const at::Device& device) {
  prepare_kernels();
  Positions positions;
  std::vector<at::Tensor> places;
  int64_t at = 0;
  for (const TokenRun& run : runs) {
    positions.documents.push_back(at);
    positions.sequences.push_back(run.sequence);
    at += run.count;
    places.push_back(at::arange(run.first, run.first + run.count, at::kLong));
  }
  positions.places = placed(at::cat(places, 0).unsqueeze(0), device);
  set_turns(config, positions, [&](const Rope& rope) {
    std::vector<at::Tensor> cosines, sines;
    for (const TokenRun& run : runs) {
      const Positions::Turns turns = turns_of(rope, config.head_size, run.first, run.count);
      cosines.push_back(turns.cosine), sines.push_back(turns.sine);
    }
    return on_device({at::cat(cosines, 0), at::cat(sines, 0)}, device);
  });
  return positions;
}

at::Tensor rotated(const at::Tensor& x, const Positions::Turns& turns) {
  return Rotate::apply(x, turns.cosine, turns.sine);
}

at::Tensor product_without_values(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias) {
  return ProductWithoutValues::apply(x, matrix, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

at::Tensor dropped(const at::Tensor& x, double p, uint64_t key) {
  return p == 0 ? x : Drop::apply(x, p, static_cast<int64_t>(key));
}

}  // namespace penstock::trainer
