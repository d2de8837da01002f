#include "runtime/trainer/torch/train_step.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "runtime/trainer/torch/embedding.h"
#include "runtime/trainer/torch/head.h"
#include "runtime/trainer/torch/refusals.h"
#include "runtime/trainer/torch/use_graph.h"

namespace penstock::trainer {

struct TrainStep::UnderWay {
  using Place = std::pair<uint32_t, uint32_t>;  // use, micro-batch

  std::span<const MicroBatch> batches;
  DropoutKeys keys;
  double scale = 0;                        // of each token's loss
  std::vector<at::Tensor> tokens;          // by micro-batch, in host memory
  std::vector<at::Tensor> hidden;          // by micro-batch: as far as forward has come
  std::vector<at::Tensor> gradients;       // by micro-batch: as far as backward has come
  std::vector<at::Tensor> losses;          // by micro-batch
  std::map<Place, at::Tensor> boundaries;  // of uses that are recomputed
  std::map<Place, std::unique_ptr<UseGraph>> graphs;
  std::vector<at::Tensor> given;           // a block's gradients, until its pass is released
  std::map<int64_t, Positions> positions;  // by length
  std::map<int64_t, Positions> packed;     // by micro-batch, of those that are packed

  DropoutKeys keys_of(uint32_t micro_batch) const {
    DropoutKeys own = keys;
    own.micro_batch += micro_batch;
    return own;
  }
  const Positions& positions_of(const ModelConfig& config, uint32_t micro_batch, const at::Device& device) {
    const MicroBatch& batch = batches[micro_batch];
    auto [found, added] =
        batch.positions.empty() ? positions.try_emplace(batch.length) : packed.try_emplace(micro_batch);
    if (added) found->second = make_positions(config, batch, device);
    return found->second;
  }
};

namespace {

const ModelParameter& parameter_of(const ModelUnit& unit, WeightRole role) {
  const auto found = std::find_if(unit.parameters.begin(), unit.parameters.end(),
                                  [role](const ModelParameter& parameter) { return parameter.role == role; });
  CHECK(found != unit.parameters.end(), "unit '", unit.name, "' has no parameter of role ", static_cast<int>(role));
  return *found;
}

// The unit of the use that has a parameter of the role: its own, or the one that it shares.
uint32_t unit_of(const Model& model, const ModelUse& use, WeightRole role) {
  for (uint32_t unit : use.units)
    for (const ModelParameter& parameter : model.units[unit].parameters)
      if (parameter.role == role) return unit;
  CHECK(false, "use '", use.name, "' has no parameter of role ", static_cast<int>(role));
  return 0;
}

// `whole`: contiguous.
Status give(EngineVerbs& engine, const ComputePass& pass, uint32_t unit, uint64_t first, const at::Tensor& whole) {
  return engine.gradient(pass, unit, first, dtype_of(whole), bytes_of(whole));
}

Status check_positions(const MicroBatch& batch) {
  if (batch.positions.size() != batch.tokens.size())
    return Status(Code::kUsage, text(batch.positions.size(), " positions of ", batch.tokens.size(), " tokens"));
  for (size_t at = 0; at < batch.positions.size(); ++at) {
    const bool begins = at % static_cast<size_t>(batch.length) == 0;
    const int32_t next = begins ? 0 : batch.positions[at - 1] + 1;
    if (batch.positions[at] != 0 && batch.positions[at] != next)
      return Status(Code::kUsage,
                    text("token ", at, " has position ", batch.positions[at], ", 0 or ", next, " expected"));
  }
  return Status();
}

}  // namespace

void WorstMicroBatch::look_at(const WorstMicroBatch& other) {
  if (other.number == kNone) return;
  const bool is_worse = std::isfinite(other.loss) ? other.loss > loss : std::isfinite(loss);
  if (number == kNone || (is_worse && std::isfinite(loss))) *this = other;
}

StepLoss sum_of(std::span<const StepLoss> losses) {
  StepLoss all;
  for (const StepLoss& one : losses) {
    all.sum += one.sum;
    all.supervised += one.supervised;
    all.worst.look_at(one.worst);
  }
  return all;
}

TrainStep::TrainStep(const Model& model, EngineVerbs& engine, const ComputeChoices& choices,
                     std::vector<ActivationChoice> activations, Keeping keeping)
    : model_(model), engine_(engine), choices_(choices), keeping_(keeping) {
  set_activations(std::move(activations));
  prepare_kernels();
  hook_autograd();
  while (lowest_trained_ < model_.uses.size()) {
    const std::vector<uint32_t>& units = model_.uses[lowest_trained_].units;
    if (std::any_of(units.begin(), units.end(), [&](uint32_t unit) { return model_.units[unit].trainable(); })) break;
    ++lowest_trained_;
  }
}

TrainStep::~TrainStep() = default;

void TrainStep::set_activations(std::vector<ActivationChoice> activations) {
  CHECK(activations.size() == model_.uses.size(), activations.size(), " choices for ", model_.uses.size(), " uses");
  activations_ = std::move(activations);
}

Status TrainStep::check(std::span<const MicroBatch> batches) const {
  const ModelConfig& config = model_.config;
  for (size_t i = 0; i < batches.size(); ++i) {
    const MicroBatch& batch = batches[i];
    const auto tokens = static_cast<size_t>(batch.sequences * batch.length);
    if (batch.sequences < 1 || batch.length < 1 || batch.tokens.size() != tokens || batch.targets.size() != tokens)
      return Status(Code::kUsage,
                    text("micro-batch ", i, ": ", batch.tokens.size(), " tokens and ", batch.targets.size(),
                         " targets, expected ", batch.sequences, " x ", batch.length, " of both"));
    if (config.block == BlockKind::gpt2 && batch.length > config.positions)
      return Status(Code::kUsage, text("micro-batch ", i, ": sequences of ", batch.length, " tokens, the model has ",
                                       config.positions, " positions"));
    if (!batch.positions.empty()) PENSTOCK_TRY(check_positions(batch).within(text("micro-batch ", i)));
    for (size_t at = 0; at < tokens; ++at) {
      const int64_t vocab = config.vocab, token = batch.tokens[at], target = batch.targets[at];
      if (token < 0 || token >= vocab || ((target < 0 || target >= vocab) && target != kIgnored))
        return Status(Code::kUsage, text("micro-batch ", i, ": token ", at, " is ", token, " with target ", target,
                                         ", the vocabulary has ", vocab));
    }
  }
  return Status();
}

Result<StepLoss> TrainStep::run(uint64_t step, std::span<const MicroBatch> batches, std::span<const ComputePass> order,
                                double loss_scale, const StepShare& share) {
  PENSTOCK_TRY(check(batches));
  uint64_t supervised = 0;
  for (const MicroBatch& batch : batches) supervised += batch.supervised();
  supervised = share.supervised.value_or(supervised);
  UnderWay way;
  way.batches = batches;
  way.keys = {.training = true, .seed = choices_.seed, .step = step, .micro_batch = share.first_micro_batch};
  way.scale = supervised == 0 ? 0 : loss_scale / static_cast<double>(supervised);
  return pass_all(way, order);
}

Result<std::vector<StepLoss>> TrainStep::evaluate(std::span<const MicroBatch> batches) {
  PENSTOCK_TRY(check(batches));
  UnderWay way;
  way.batches = batches;
  begin(way);
  for (uint32_t use = 0; use < model_.uses.size(); ++use) {
    const ComputePass held{Direction::forward, use, 0};
    PENSTOCK_TRY_ASSIGN(weights, engine_.acquire(held));
    Status status;
    for (uint32_t micro_batch = 0; status.ok() && micro_batch < batches.size(); ++micro_batch) {
      status = without_exceptions(nullptr, [&] {
        return pass_forward(way, {Direction::forward, use, micro_batch}, weights);
      });
    }
    const Status released = engine_.release(held);
    PENSTOCK_TRY(status.within(model_.uses[use].name));
    PENSTOCK_TRY(released);
  }
  return losses_of(way);
}

void TrainStep::begin(UnderWay& way) const {
  const size_t count = way.batches.size();
  way.hidden.resize(count), way.gradients.resize(count), way.losses.resize(count);
  for (const MicroBatch& batch : way.batches) way.tokens.push_back(token_tensor(batch));
}

Result<std::vector<StepLoss>> TrainStep::losses_of(const UnderWay& way) const {
  return without_exceptions(nullptr, [&]() -> Result<std::vector<StepLoss>> {
    std::vector<StepLoss> losses(way.batches.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      StepLoss& loss = losses[i];
      loss.supervised = way.batches[i].supervised();
      if (!way.losses[i].defined()) continue;
      loss.sum = way.losses[i].item<double>();
      if (loss.supervised > 0) loss.worst.look_at({way.keys.micro_batch + i, loss.mean()});
    }
    return losses;
  });
}

Result<StepLoss> TrainStep::pass_all(UnderWay& way, std::span<const ComputePass> order) {
  begin(way);
  const size_t count = way.batches.size();
  for (const ComputePass& pass : order) {
    CHECK(pass.use < model_.uses.size() && pass.micro_batch < count, "a pass of use ", pass.use, " and micro-batch ",
          pass.micro_batch, " of ", model_.uses.size(), " and ", count);
    PENSTOCK_TRY(take(way, pass));
  }
  PENSTOCK_TRY_ASSIGN(losses, losses_of(way));
  return sum_of(losses);
}

Status TrainStep::take(UnderWay& way, const ComputePass& pass) {
  PENSTOCK_TRY_ASSIGN(weights, engine_.acquire(pass));
  const Status computed = without_exceptions(nullptr, [&] {
    return pass.direction == Direction::forward ? pass_forward(way, pass, weights) : pass_backward(way, pass, weights);
  });
  const Status status = computed.within(model_.uses[pass.use].name);
  const Status released = engine_.release(pass);
  way.given.clear();
  return status.ok() ? released : status;
}

Status TrainStep::pass_forward(UnderWay& way, const ComputePass& pass, std::span<const UnitWeights> weights) {
  const uint32_t micro_batch = pass.micro_batch;
  const at::Device device = engine_.accelerator().device();
  switch (model_.uses[pass.use].kind) {
    case UseKind::embedding:
      way.hidden[micro_batch] =
          embedding_forward(model_.config, views_of(model_, weights, device), way.tokens[micro_batch],
                            way.positions_of(model_.config, micro_batch, device).places, way.keys_of(micro_batch));
      return Status();
    case UseKind::block:
      return block_forward_of(way, pass, weights);
    case UseKind::head:
      if (way.keys.training) return Status();
      way.losses[micro_batch] =
          head_loss(model_.config, views_of(model_, weights, device), way.hidden[micro_batch],
                    way.batches[micro_batch].targets, {.tokens = choices_.head_tokens, .rows = choices_.head_rows});
      way.hidden[micro_batch].reset();
      return Status();
  }
  return Status();
}

Status TrainStep::block_forward_of(UnderWay& way, const ComputePass& pass, std::span<const UnitWeights> weights) {
  const auto [direction, use, micro_batch] = pass;
  at::Tensor& hidden = way.hidden[micro_batch];
  const at::Device device = hidden.device();
  const Positions& positions = way.positions_of(model_.config, micro_batch, device);
  const uint32_t layer = model_.uses[use].layer;
  const DropoutKeys keys = way.keys_of(micro_batch);
  // The record outlives this call.
  const UseFunction function = [this, layer, &positions, keys](const WeightTensors& views, const at::Tensor& x) {
    return block_forward(model_.config, layer, views, x, positions, keys);
  };
  const ActivationChoice choice = activations_[use];
  const bool goes_back = way.keys.training && use >= lowest_trained_;
  const Keeping keeping = offloads(choice) ? Keeping::with_engine : keeping_;
  if (goes_back && !recomputes(choice)) {
    const HiddenGradient need = use > lowest_trained_ ? HiddenGradient::needed : HiddenGradient::not_needed;
    PENSTOCK_TRY_ASSIGN(graph, UseGraph::record(model_, function, weights, hidden, need,
                                                std::make_shared<SavedTensors>(keeping, engine_, use, micro_batch)));
    hidden = graph->take_result();
    way.graphs[{use, micro_batch}] = std::move(graph);
    return Status();
  }
  if (goes_back) {
    const bool puts = keeping == Keeping::with_engine;
    if (puts) PENSTOCK_TRY(engine_.put(use, micro_batch, 0, bytes_of(std::as_const(hidden))));
    way.boundaries[{use, micro_batch}] = puts ? at::Tensor() : hidden;
  }
  PENSTOCK_TRY_ASSIGN(result, forward_only(model_, function, weights, hidden));
  hidden = result;
  return Status();
}

Status TrainStep::pass_backward(UnderWay& way, const ComputePass& pass, std::span<const UnitWeights> weights) {
  const auto [direction, use_number, micro_batch] = pass;
  if (use_number < lowest_trained_) return Status();
  const ModelUse& use = model_.uses[use_number];
  const at::Device device = engine_.accelerator().device();
  const EndChunks chunks{.tokens = choices_.head_tokens, .rows = choices_.head_rows};
  const TakeRows take = [&](WeightRole role, int64_t first_row, const at::Tensor& rows) {
    const uint32_t unit = unit_of(model_, use, role);
    const ModelParameter& parameter = parameter_of(model_.units[unit], role);
    const uint64_t row_elements = parameter.elements / parameter.shape[0];
    return give(engine_, pass, unit, parameter.first_element + static_cast<uint64_t>(first_row) * row_elements,
                rows.contiguous());
  };
  switch (use.kind) {
    case UseKind::embedding:
      return embedding_backward(model_, way.tokens[micro_batch],
                                way.positions_of(model_.config, micro_batch, device).places,
                                std::move(way.gradients[micro_batch]), way.keys_of(micro_batch), chunks, take);
    case UseKind::block:
      return block_backward_of(way, pass, weights);
    case UseKind::head: {
      const NeedsHidden need = use_number > lowest_trained_ ? NeedsHidden::yes : NeedsHidden::no;
      PENSTOCK_TRY_ASSIGN(back, head_backward(model_, views_of(model_, weights, device), way.hidden[micro_batch],
                                              way.batches[micro_batch].targets, way.scale, need, chunks, take));
      way.losses[micro_batch] = back.loss;
      way.gradients[micro_batch] = back.hidden;
      way.hidden[micro_batch].reset();
      return Status();
    }
  }
  return Status();
}

Status TrainStep::block_backward_of(UnderWay& way, const ComputePass& pass, std::span<const UnitWeights> weights) {
  const auto [direction, use, micro_batch] = pass;
  const at::Tensor gradient = std::move(way.gradients[micro_batch]);
  UseGradients gradients;
  if (const auto graph = way.graphs.find({use, micro_batch}); graph != way.graphs.end()) {
    PENSTOCK_TRY_ASSIGN(found, graph->second->backward(weights, gradient));
    gradients = std::move(found);
    way.graphs.erase(graph);
  } else {
    const auto boundary = way.boundaries.find({use, micro_batch});
    CHECK(boundary != way.boundaries.end(), "backward of use ", use, " before its forward");
    at::Tensor hidden = std::move(boundary->second);
    way.boundaries.erase(boundary);
    if (!hidden.defined()) {
      hidden = at::empty(gradient.sizes(), gradient.options());
      PENSTOCK_TRY(engine_.get(use, micro_batch, 0, bytes_of(hidden)));
    }
    const Positions& positions = way.positions_of(model_.config, micro_batch, hidden.device());
    const DropoutKeys keys = way.keys_of(micro_batch);
    const UseFunction function = [&](const WeightTensors& views, const at::Tensor& x) {
      return block_forward(model_.config, model_.uses[use].layer, views, x, positions, keys, nullptr,
                           BlockResult::graph);
    };
    const HiddenGradient need = use > lowest_trained_ ? HiddenGradient::needed : HiddenGradient::not_needed;
    PENSTOCK_TRY_ASSIGN(found, recompute(model_, function, weights, hidden, need, gradient));
    gradients = std::move(found);
  }
  auto next = gradients.parameters.begin();
  for (uint32_t unit : model_.uses[use].units) {
    for (const ModelParameter& parameter : model_.units[unit].parameters) {
      const at::Tensor values = std::move(*next++);
      if (!values.defined()) continue;
      way.given.push_back(values.contiguous());
      PENSTOCK_TRY(give(engine_, pass, unit, parameter.first_element, way.given.back()));
    }
  }
  way.gradients[micro_batch] = std::move(gradients.hidden);
  return Status();
}

std::vector<ComputePass> step_order(const Model& model, uint32_t micro_batches, uint32_t group) {
  std::vector<ComputePass> order;
  const auto uses = static_cast<uint32_t>(model.uses.size());
  for (uint32_t first = 0; first < micro_batches; first += group) {
    const uint32_t end = std::min(first + group, micro_batches);
    for (uint32_t use = 0; use < uses; ++use)
      for (uint32_t micro_batch = first; micro_batch < end; ++micro_batch)
        order.push_back({Direction::forward, use, micro_batch});
    for (uint32_t use = uses; use-- > 0;)
      for (uint32_t micro_batch = first; micro_batch < end; ++micro_batch)
        order.push_back({Direction::backward, use, micro_batch});
  }
  return order;
}

}  // namespace penstock::trainer
