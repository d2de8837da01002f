#include "runtime/trainer/torch/dry_step.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "aio/resident_memory.h"
#include "runtime/trainer/torch/product_rate.h"
#include "runtime/trainer/torch/tensors.h"
#include "tiering/buffer.h"

namespace penstock::trainer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPutAlignmentBytes = 256;  // as Engine::put() has it
constexpr int kRounds = 2;                    // kernels prepare themselves in the first

// Weights of zeros, every unit in the same place. What is put is counted and forgotten; what is got is zeros.
class DryMemory final : public EngineVerbs {
 public:
  struct Measured {
    double forward_s = 0, backward_s = 0;
    uint64_t put_bytes = 0;
    uint64_t tensor_peak_bytes = 0;
    uint64_t resident_beside_tensors_bytes = 0;
  };

  DryMemory(const Model& model, Accelerator& accelerator)
      : model_(model), accelerator_(accelerator), uses_(model.uses.size()) {
    uint64_t most = 0;
    for (const ModelUse& use : model.uses) {
      uint64_t bytes = 0;
      for (uint32_t unit : use.units) bytes += place_bytes(unit);
      most = std::max(most, bytes);
    }
    memory_ = at::zeros({static_cast<int64_t>(most)}, at::TensorOptions(at::kByte).device(accelerator.device()));
  }

  Accelerator& accelerator() override { return accelerator_; }
  Result<std::vector<UnitWeights>> acquire(const ComputePass& pass) override {
    std::vector<UnitWeights> lent;
    uint64_t at = 0;
    for (uint32_t unit : model_.uses[pass.use].units) {
      const uint64_t elements = model_.units[unit].elements;
      lent.push_back({unit, elements, bytes_of(memory_).subspan(at, elements * penstock::bytes_of(model_.dtype))});
      at += place_bytes(unit);
    }
    PENSTOCK_TRY(accelerator_.finish());
    accelerator_.restart_tensor_peak();
    aio::restart_resident_peak();
    began_ = Clock::now();
    return lent;
  }
  Status release(const ComputePass& pass) override {
    PENSTOCK_TRY(accelerator_.finish());
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    Measured& use = uses_[pass.use];
    double& fastest = pass.direction == Direction::forward ? use.forward_s : use.backward_s;
    fastest = fastest == 0 ? seconds : std::min(fastest, seconds);
    const Accelerator::TensorBytes tensors = accelerator_.tensor_bytes();
    use.tensor_peak_bytes = std::max(use.tensor_peak_bytes, tensors.peak);
    const uint64_t resident_bytes = aio::resident_bytes_peak();
    use.resident_beside_tensors_bytes =
        std::max(use.resident_beside_tensors_bytes, resident_bytes - std::min(resident_bytes, tensors.in_host));
    return Status();
  }
  Status gradient(const ComputePass&, uint32_t, uint64_t, Dtype, std::span<const std::byte>) override {
    return Status();
  }
  Status put(uint32_t use, uint32_t, uint32_t, std::span<const std::byte> bytes) override {
    uses_[use].put_bytes += round_up(bytes.size(), kPutAlignmentBytes);
    return Status();
  }
  Status get(uint32_t, uint32_t, uint32_t, std::span<std::byte> into) override {
    tensor_over(into, accelerator_.device()).zero_();
    return Status();
  }

  // Since the last call.
  std::vector<Measured> take() { return std::exchange(uses_, std::vector<Measured>(model_.uses.size())); }

 private:
  uint64_t place_bytes(uint32_t unit) const {
    return round_up(model_.units[unit].elements * bytes_of(model_.dtype), kAlignmentBytes);
  }

  const Model& model_;
  Accelerator& accelerator_;
  std::vector<Measured> uses_;
  at::Tensor memory_;
  Clock::time_point began_;
};

bool trains(const Model& model, const ModelUse& use) {
  return std::any_of(use.units.begin(), use.units.end(), [&](uint32_t unit) { return model.units[unit].trainable(); });
}

// Uses of which this is the same compute alike.
std::string kind_of(const Model& model, const ModelUse& use, bool goes_back, bool is_lowest) {
  std::string kind = text(static_cast<int>(use.kind), goes_back ? " back" : "", is_lowest ? " lowest" : "");
  if (use.kind == UseKind::block)
    kind += text(" window ", model.config.windows[use.layer], " scale ", model.config.attention_scales[use.layer]);
  for (uint32_t unit : use.units) {
    for (const ModelParameter& parameter : model.units[unit].parameters) {
      kind += text(' ', static_cast<int>(parameter.role), '.', static_cast<int>(parameter.factor),
                   parameter.trainable ? "" : " frozen");
      for (uint64_t length : parameter.shape) kind += text('x', length);
    }
  }
  return kind;
}

}  // namespace

Result<DryStep> dry_step(const Model& model, Accelerator& accelerator, const ComputeChoices& choices,
                         std::span<const MicroBatch> batches, Keeping keeping) {
  // One use of each kind, in their order.
  Model few = model;
  few.uses.clear();
  std::map<std::string, uint32_t> places;
  std::vector<uint32_t> place_of;
  bool goes_back = false;
  for (const ModelUse& use : model.uses) {
    const bool is_lowest = !goes_back && trains(model, use);
    goes_back |= is_lowest;
    const auto [found, is_new] =
        places.try_emplace(kind_of(model, use, goes_back, is_lowest), static_cast<uint32_t>(few.uses.size()));
    if (is_new) few.uses.push_back(use);
    place_of.push_back(found->second);
  }

  DryStep step;
  step.product_flops = product_flops(accelerator, model.dtype);
  accelerator.give_back_tensors();
  std::optional<DryMemory> memory(std::in_place, few, accelerator);
  const std::vector<ComputePass> order = step_order(few, 1, 1);
  // Nothing but the use under way is in memory.
  auto measured = [&](ActivationChoice choice) -> Result<std::vector<DryMemory::Measured>> {
    TrainStep real(few, *memory, choices, std::vector<ActivationChoice>(few.uses.size(), choice));
    PENSTOCK_TRY(real.check(batches));
    std::vector<DryMemory::Measured> best;
    for (int round = 0; round < kRounds; ++round) {
      PENSTOCK_TRY(real.run(1, batches.first(1), order).status());
      std::vector<DryMemory::Measured> now = memory->take();
      for (size_t use = 0; use < best.size(); ++use) {
        now[use].forward_s = std::min(now[use].forward_s, best[use].forward_s);
        now[use].backward_s = std::min(now[use].backward_s, best[use].backward_s);
      }
      best = std::move(now);
    }
    return best;
  };
  const uint64_t tensors_before = accelerator.tensor_bytes().live;
  PENSTOCK_TRY_ASSIGN(again, measured(ActivationChoice::recompute_offload));
  PENSTOCK_TRY_ASSIGN(recorded, measured(ActivationChoice::offload));

  uint64_t boundary_most = 0;
  for (uint32_t place : place_of) {
    const bool is_block = few.uses[place].kind == UseKind::block;
    step.uses.push_back({.forward_s = again[place].forward_s,
                         .backward_s = recorded[place].backward_s,
                         .activation_bytes = is_block ? recorded[place].put_bytes : 0,
                         .boundary_bytes = is_block ? again[place].put_bytes : 0});
    boundary_most = std::max(boundary_most, step.uses.back().boundary_bytes);
  }
  auto less = [](uint64_t bytes, uint64_t known) { return bytes - std::min(bytes, known); };
  for (uint32_t place = 0; place < few.uses.size(); ++place) {
    const uint64_t here = less(again[place].tensor_peak_bytes, tensors_before);
    step.tensor_bytes = std::max(step.tensor_bytes, less(here, recorded[place].put_bytes + 2 * boundary_most));
    const uint64_t with_engine = less(recorded[place].tensor_peak_bytes, tensors_before);
    if (keeping == Keeping::with_engine)
      step.tensor_bytes = std::max(step.tensor_bytes, less(with_engine, 2 * boundary_most));
    for (const DryMemory::Measured& of : {again[place], recorded[place]})
      step.process_bytes = std::max(step.process_bytes, of.resident_beside_tensors_bytes);
  }
  memory.reset();
  accelerator.give_back_tensors();
  return step;
}

}  // namespace penstock::trainer
