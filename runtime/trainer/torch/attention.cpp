#include "runtime/trainer/torch/attention.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "runtime/trainer/counter_random.h"
#include "runtime/trainer/torch/functions.h"
#include "tiering/check.h"

namespace penstock::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Some queries of a sequence, and the keys that any of them sees.
struct QueryRun {
  int64_t first = 0, count = 0;
  int64_t first_key = 0, keys = 0;
};

// [queries, keys], true where the query's position sees the key's.
at::Tensor seen(const QueryRun& run, uint32_t window, const at::Device& device) {
  auto places = [&](int64_t first, int64_t count) {
    return at::arange(first, first + count, at::TensorOptions(at::kLong).device(device));
  };
  const at::Tensor behind = places(run.first, run.count).unsqueeze(1) - places(run.first_key, run.keys).unsqueeze(0);
  at::Tensor mask = behind.ge(0);
  return window == 0 ? mask : mask.logical_and_(behind.lt(static_cast<int64_t>(window)));
}

// Of products of queries with keys, which may be overwritten.
at::Tensor scores_of(const at::Tensor& products, const AttentionShape& shape) {
  at::Tensor scores = products.to(at::kFloat).mul_(shape.scale);
  return shape.softcap > 0 ? scores.div_(shape.softcap).tanh_().mul_(shape.softcap) : scores;
}

// What LibTorch's own attention does not do: bounded scores, and weights that are dropped by number. The scores of some
// queries at a time are in memory; backward computes them again, so that it needs query, key and value alone.
struct AttendInRuns : torch::autograd::Function<AttendInRuns> {
  // Queries at once. Gradients of keys and values are rounded by run, so it is one number for all budgets.
  static constexpr int64_t kQueries = 128;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const AttentionShape& shape) {
    context->save_for_backward({query, key, value});
    context->saved_data["scale"] = shape.scale;
    context->saved_data["softcap"] = shape.softcap;
    context->saved_data["window"] = static_cast<int64_t>(shape.window);
    context->saved_data["dropout"] = shape.dropout;
    context->saved_data["dropout_key"] = static_cast<int64_t>(shape.dropout_key);
    const at::Tensor keys = by_key_head(key), values = by_key_head(value);
    at::Tensor out = at::empty(query.sizes(), query.options());
    for_runs(query.size(1), shape, [&](const QueryRun& run) {
      const Weights weights = weights_of(rows_of(query, run, key.size(2)), keys, run, shape);
      put_rows(at::bmm(weights.dropped, seen_by(run, values)), run, out);
    });
    return out.flatten(2);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2];
    const AttentionShape shape{
        .scale = context->saved_data["scale"].toDouble(),
        .softcap = context->saved_data["softcap"].toDouble(),
        .window = static_cast<uint32_t>(context->saved_data["window"].toInt()),
        .dropout = context->saved_data["dropout"].toDouble(),
        .dropout_key = static_cast<uint64_t>(context->saved_data["dropout_key"].toInt()),
    };
    const int64_t groups = key.size(2);
    const at::Tensor of_out = gradients[0].reshape(query.sizes());
    const at::Tensor keys = by_key_head(key), values = by_key_head(value);
    at::Tensor of_query = at::empty(query.sizes(), query.options());
    at::Tensor of_keys = at::zeros(keys.sizes(), keys.options().dtype(at::kFloat));
    at::Tensor of_values = at::zeros(values.sizes(), values.options().dtype(at::kFloat));
    for_runs(query.size(1), shape, [&](const QueryRun& run) {
      const at::Tensor queries = rows_of(query, run, groups), of_rows = rows_of(of_out, run, groups);
      const Weights weights = weights_of(queries, keys, run, shape);
      seen_by(run, of_values).add_(at::bmm(weights.dropped.transpose(1, 2), of_rows));
      const at::Tensor of_dropped = at::bmm(of_rows, seen_by(run, values).transpose(1, 2));
      const at::Tensor of_weights = dropped(of_dropped, shape.dropout, run_key(shape, run)).to(at::kFloat);
      at::Tensor of_scores = at::_softmax_backward_data(of_weights, weights.whole, -1, at::kFloat);
      if (weights.slope.defined()) of_scores.mul_(weights.slope);
      const at::Tensor of_products = of_scores.mul_(shape.scale).to(query.scalar_type());
      put_rows(at::bmm(of_products, seen_by(run, keys)), run, of_query);
      seen_by(run, of_keys).add_(at::bmm(of_products.transpose(1, 2), queries));
    });
    return {of_query, as_given(of_keys, key), as_given(of_values, value), at::Tensor()};
  }

 private:
  // [heads of keys, queries, keys]
  struct Weights {
    at::Tensor whole;    // fp32
    at::Tensor dropped;  // what values are multiplied by
    at::Tensor slope;    // of the scores' bound; undefined where they have none
  };

  static Weights weights_of(const at::Tensor& queries, const at::Tensor& keys, const QueryRun& run,
                            const AttentionShape& shape) {
    const at::Tensor scores = scores_of(at::bmm(queries, seen_by(run, keys).transpose(1, 2)), shape);
    Weights weights;
    if (shape.softcap > 0) weights.slope = scores.div(shape.softcap).square_().neg_().add_(1);
    scores.view({-1, run.count, run.keys})
        .masked_fill_(seen(run, shape.window, scores.device()).logical_not_(), -std::numeric_limits<float>::infinity());
    weights.whole = at::softmax(scores, -1);
    weights.dropped = dropped(weights.whole.to(queries.scalar_type()), shape.dropout, run_key(shape, run));
    return weights;
  }

  static uint64_t run_key(const AttentionShape& shape, const QueryRun& run) {
    return stream_key(shape.dropout_key, static_cast<uint64_t>(run.first));
  }

  template <typename Function>
  static void for_runs(int64_t length, const AttentionShape& shape, const Function& function) {
    for (int64_t first = 0; first < length; first += kQueries) {
      const int64_t end = std::min(first + kQueries, length);
      const int64_t before = shape.window == 0 ? first : std::min<int64_t>(first, shape.window - 1);
      function(
          QueryRun{.first = first, .count = end - first, .first_key = first - before, .keys = end - first + before});
    }
  }

  // Of [batch, length, heads, size]: [batch * heads, length, size].
  static at::Tensor by_key_head(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); }
  static at::Tensor as_given(const at::Tensor& x, const at::Tensor& given) {
    return x.to(given.scalar_type()).unflatten(0, {given.size(0), given.size(2)}).transpose(1, 2);
  }
  static at::Tensor seen_by(const QueryRun& run, const at::Tensor& x) { return x.narrow(1, run.first_key, run.keys); }

  // Of [batch, length, heads, size] a run: [batch * groups, heads of a group * queries, size].
  static at::Tensor rows_of(const at::Tensor& x, const QueryRun& run, int64_t groups) {
    const at::Tensor own = x.narrow(1, run.first, run.count).unflatten(2, {groups, x.size(2) / groups});
    return own.permute({0, 2, 3, 1, 4}).flatten(2, 3).flatten(0, 1);
  }
  static void put_rows(const at::Tensor& rows, const QueryRun& run, at::Tensor& x) {
    const int64_t batch = x.size(0);
    // Heads of a group follow one another, and so do groups.
    const at::Tensor own = rows.view({batch, x.size(2), run.count, x.size(3)}).transpose(1, 2);
    x.narrow(1, run.first, run.count).copy_(own);
  }
};

// The queries that share a key are given to attention as the heads of a batch of their own, whose key they share by a
// stride of 0: attention on CPUs would repeat keys and values otherwise.
at::Tensor attended_at_once(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionShape& shape) {
  if (shape.dropout > 0 || shape.softcap > 0) return AttendInRuns::apply(query, key, value, shape);
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
  if (shape.window == 0 || shape.window >= length) {
    out = at::scaled_dot_product_attention(q, k, v, {}, 0, /*is_causal=*/true, shape.scale);
  } else {
    const at::Tensor mask = seen({.count = length, .keys = length}, shape.window, q.device());
    out = at::scaled_dot_product_attention(q, k, v, mask, 0, /*is_causal=*/false, shape.scale);
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
  if (shape.softcap > 0) {
    const at::Tensor weights =
        at::softmax(scores_of(at::matmul(q, by_group(keys).transpose(-1, -2)), shape), -1).to(values.scalar_type());
    return at::matmul(weights, by_group(values)).reshape({1, heads * size});
  }
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

}  // namespace

at::Tensor attended(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionShape& shape) {
  if (shape.past != nullptr) return attended_after_past(query, key, value, shape);
  return shape.documents.empty() ? attended_at_once(query, key, value, shape)
                                 : attended_by_document(query, key, value, shape);
}

}  // namespace penstock::trainer
