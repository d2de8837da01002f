#include "runtime/trainer/torch/head.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <vector>

namespace penstock::trainer {
namespace {

WeightRole matrix_of(const ModelConfig& config) { return config.tied ? WeightRole::tokens : WeightRole::head; }

// What the head computes with: normed hidden values of the supervised tokens alone, and what should follow them.
struct Supervised {
  at::Tensor rows;     // their places among all tokens; undefined if all are supervised
  at::Tensor targets;  // int64
  int64_t count = 0;
};

Supervised supervised_of(std::span<const int32_t> targets, const at::Device& device) {
  Supervised found;
  std::vector<int64_t> rows, wanted;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == kIgnored) continue;
    rows.push_back(static_cast<int64_t>(i));
    wanted.push_back(targets[i]);
  }
  found.count = static_cast<int64_t>(rows.size());
  found.targets = placed(wanted, device);
  if (rows.size() != targets.size()) found.rows = placed(rows, device);
  return found;
}

at::Tensor chosen(const at::Tensor& x, const Supervised& supervised) {
  return supervised.rows.defined() ? x.index_select(0, supervised.rows) : x;
}

// Logits x become cap * tanh(x / cap), in fp32; 0: they stay. `wide` may be overwritten.
at::Tensor capped(const at::Tensor& wide, double cap) { return cap > 0 ? wide.div(cap).tanh_().mul_(cap) : wide; }

at::Tensor wide_logits(const at::Tensor& normed, const at::Tensor& matrix, double cap) {
  return capped(at::linear(normed, matrix).to(at::kFloat), cap);
}

at::Tensor no_loss(const at::Device& device) { return at::zeros({}, at::TensorOptions(at::kDouble).device(device)); }

at::Tensor summed_loss(const at::Tensor& logits, const at::Tensor& log_sums, const at::Tensor& targets) {
  const at::Tensor wanted = logits.gather(1, targets.unsqueeze(1)).squeeze(1);
  return (log_sums - wanted).sum(at::kDouble);
}

// From capped logits in place: the gradient of scale x loss, of the logits before the cap. `targets` outside of
// [0, columns) are in another run of columns.
at::Tensor logit_gradient(at::Tensor logits, const at::Tensor& log_sums, const at::Tensor& targets, double scale,
                          double cap, at::ScalarType type) {
  at::Tensor slope;  // of the cap
  if (cap > 0) slope = logits.div(cap).square_().neg_().add_(1);
  logits.sub_(log_sums.unsqueeze(1)).exp_();
  const int64_t last = logits.size(1) - 1;
  const at::Tensor here = targets.ge(0).logical_and_(targets.le(last)).to(at::kFloat).unsqueeze(1);
  const at::Tensor column = targets.clamp(0, last).unsqueeze(1);
  logits.scatter_(1, column, logits.gather(1, column).sub_(here));
  if (slope.defined()) logits.mul_(slope);
  return logits.mul_(scale).to(type);
}

// Tokens whose logits are fp32 at once: with a vocabulary of 50 thousand, 6 MiB that stay in the cache and need no new
// pages from the system.
constexpr int64_t kWideTokens = 32;
constexpr int64_t kWideTokensOnDevice = 1024;  // which has no such cache, and wants few calls

// Sums up the loss of all tokens' logits, and puts the gradient of scale x loss in their place if there is a scale.
at::Tensor through_loss(at::Tensor logits, const at::Tensor& targets, double cap, std::optional<double> scale) {
  at::Tensor loss = no_loss(logits.device());
  for_runs(logits.size(0), logits.is_cpu() ? kWideTokens : kWideTokensOnDevice, [&](int64_t first, int64_t count) {
    at::Tensor rows = logits.narrow(0, first, count);
    const at::Tensor wide = capped(rows.to(at::kFloat), cap), wanted = targets.narrow(0, first, count);
    const at::Tensor log_sums = at::logsumexp(wide, std::vector<int64_t>{1});
    loss.add_(summed_loss(wide, log_sums, wanted));
    if (scale) rows.copy_(logit_gradient(wide, log_sums, wanted, *scale, cap, logits.scalar_type()));
  });
  return loss;
}

// The head's matrix: loss and gradients from the normed hidden values.
class HeadMatrix {
 public:
  HeadMatrix(at::Tensor matrix, at::Tensor normed, at::Tensor targets, double scale, double cap,
             const EndChunks& chunks)
      : matrix_(std::move(matrix)),
        normed_(std::move(normed)),
        targets_(std::move(targets)),
        scale_(scale),
        cap_(cap),
        chunks_(chunks),
        loss_(no_loss(matrix_.device())) {}

  // Every run of tokens once: their logits give loss and both gradients.
  Status at_once(bool with_rows, WeightRole role, const TakeRows& take) {
    const int64_t tokens = normed_.size(0);
    const bool one_run = chunks_.tokens == 0 || chunks_.tokens >= tokens;
    of_normed_ = at::empty(normed_.sizes(), normed_.options());
    at::Tensor rows;
    for_runs(tokens, chunks_.tokens, [&](int64_t first, int64_t count) {
      const at::Tensor part = normed_.narrow(0, first, count), wanted = targets_.narrow(0, first, count);
      const at::Tensor gradient = at::linear(part, matrix_);
      loss_.add_(through_loss(gradient, wanted, cap_, scale_));
      of_normed_.narrow(0, first, count).copy_(at::mm(gradient, matrix_));
      if (!with_rows) return;
      const at::Tensor product = at::mm(gradient.t(), part);
      if (one_run)
        rows = product;
      else
        rows = rows.defined() ? rows.add_(product) : product.to(at::kFloat);
    });
    if (!with_rows) return Status();
    if (!rows.defined()) rows = at::zeros(matrix_.sizes(), matrix_.options());
    return take(role, 0, rows.to(matrix_.scalar_type()));
  }

  // Logits a first time for loss and sums, a second time by runs of the vocabulary.
  Status by_rows(bool with_rows, WeightRole role, const TakeRows& take) {
    const int64_t tokens = normed_.size(0);
    const at::TensorOptions wide_options = normed_.options().dtype(at::kFloat);
    const at::Tensor log_sums = at::empty({tokens}, wide_options);
    for_runs(tokens, chunks_.tokens, [&](int64_t first, int64_t count) {
      const at::Tensor logits = wide_logits(normed_.narrow(0, first, count), matrix_, cap_);
      log_sums.narrow(0, first, count).copy_(at::logsumexp(logits, std::vector<int64_t>{1}));
      loss_.add_(summed_loss(logits, log_sums.narrow(0, first, count), targets_.narrow(0, first, count)));
    });
    at::Tensor wide = at::zeros(normed_.sizes(), wide_options);
    Status status;
    for_runs(matrix_.size(0), chunks_.rows, [&](int64_t first_row, int64_t row_count) {
      if (!status.ok()) return;
      const at::Tensor part_of_matrix = matrix_.narrow(0, first_row, row_count);
      at::Tensor rows = at::zeros(part_of_matrix.sizes(), wide_options);
      for_runs(tokens, chunks_.tokens, [&](int64_t first, int64_t count) {
        const at::Tensor part = normed_.narrow(0, first, count);
        const at::Tensor gradient =
            logit_gradient(wide_logits(part, part_of_matrix, cap_), log_sums.narrow(0, first, count),
                           targets_.narrow(0, first, count) - first_row, scale_, cap_, normed_.scalar_type());
        wide.narrow(0, first, count).add_(at::mm(gradient, part_of_matrix));
        if (with_rows) rows.add_(at::mm(gradient.t(), part));
      });
      if (with_rows) status = take(role, first_row, rows.to(matrix_.scalar_type()));
    });
    of_normed_ = wide.to(normed_.scalar_type());
    return status;
  }

  const at::Tensor& loss() const { return loss_; }
  const at::Tensor& of_normed() const { return of_normed_; }

 private:
  const at::Tensor matrix_, normed_, targets_;
  const double scale_, cap_;
  const EndChunks chunks_;
  at::Tensor loss_, of_normed_;
};

}  // namespace

at::Tensor head_logits(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& hidden) {
  c10::AutoGradMode not_recorded(false);
  const at::Tensor logits = at::linear(as_rows(last_norm(config, weights, hidden)), weights[matrix_of(config)]);
  if (config.logit_softcap == 0) return logits;
  return capped(logits.to(at::kFloat), config.logit_softcap).to(logits.scalar_type());
}

at::Tensor head_loss(const ModelConfig& config, const WeightTensors& weights, const at::Tensor& hidden,
                     std::span<const int32_t> targets, const EndChunks& chunks) {
  c10::AutoGradMode not_recorded(false);
  const Supervised supervised = supervised_of(targets, hidden.device());
  const at::Tensor normed = chosen(as_rows(last_norm(config, weights, hidden)), supervised);
  at::Tensor loss = no_loss(hidden.device());
  for_runs(supervised.count, chunks.tokens, [&](int64_t first, int64_t count) {
    const at::Tensor logits = at::linear(normed.narrow(0, first, count), weights[matrix_of(config)]);
    loss.add_(through_loss(logits, supervised.targets.narrow(0, first, count), config.logit_softcap, std::nullopt));
  });
  return loss;
}

Result<HeadBackward> head_backward(const Model& model, const WeightTensors& weights, const at::Tensor& hidden,
                                   std::span<const int32_t> targets, double scale, NeedsHidden need,
                                   const EndChunks& chunks, const TakeRows& take) {
  const ModelConfig& config = model.config;
  const Supervised supervised = supervised_of(targets, hidden.device());
  const WeightRole norm_roles[] = {WeightRole::last_norm, WeightRole::last_norm_bias};
  WeightTensors leaves = weights;
  std::vector<at::Tensor> inputs;
  std::vector<WeightRole> roles;
  for (WeightRole role : norm_roles) {
    if (!leaves[role].defined() || !is_trained(model, role)) continue;
    leaves[role] = leaves[role].detach().requires_grad_();
    inputs.push_back(leaves[role]);
    roles.push_back(role);
  }
  at::Tensor leaf = hidden.detach();
  if (need == NeedsHidden::yes) inputs.push_back(leaf.requires_grad_());
  at::Tensor normed;
  {
    c10::AutoGradMode recorded(true);
    normed = as_rows(last_norm(config, leaves, leaf));
  }
  HeadBackward result;
  at::Tensor of_normed;
  {
    c10::AutoGradMode not_recorded(false);
    const WeightRole role = matrix_of(config);
    const bool with_rows = is_trained(model, role);
    HeadMatrix head(weights[role], chosen(normed.detach(), supervised), supervised.targets, scale, config.logit_softcap,
                    chunks);
    PENSTOCK_TRY(chunks.rows == 0 || chunks.rows >= config.vocab ? head.at_once(with_rows, role, take)
                                                                 : head.by_rows(with_rows, role, take));
    result.loss = head.loss();
    of_normed = head.of_normed();
    if (supervised.rows.defined())
      of_normed = at::zeros(normed.sizes(), normed.options()).index_copy_(0, supervised.rows, of_normed);
  }
  if (inputs.empty()) return result;
  std::vector<at::Tensor> gradients = torch::autograd::grad({normed}, inputs, {of_normed});
  for (size_t i = 0; i < roles.size(); ++i) PENSTOCK_TRY(take(roles[i], 0, gradients[i].contiguous()));
  if (need == NeedsHidden::yes) result.hidden = std::move(gradients.back());
  return result;
}

}  // namespace penstock::trainer
