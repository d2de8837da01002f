// PlainTraining runs the steps of a training run without the engine: weights, masters and moments in plain memory, each
// unit updated whole by the scalar optimizer on the CPU. What computes is the run's accelerator. No arena, tiles, plan,
// drives, threads or processes: of several ranks it computes one after another. What `penstock verify` holds the tiers
// against.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/engine/step_engine.h"
#include "runtime/trainer/torch/train_step.h"
#include "tiering/buffer.h"
#include "tools/train/settings_of_run.h"
#include "tools/update/plain_run.h"

namespace penstock::tools {

class PlainTraining final : private trainer::EngineVerbs {
 public:
  // At the beginning of the run: the weights of the model's folder, or those from scratch. `settings` outlive it.
  static Result<std::unique_ptr<PlainTraining>> make(const TrainingSettings& settings);
  // Beside what LibTorch takes for a step.
  static uint64_t bytes_needed(const TrainingSettings& settings);

  // The step's mean loss.
  Result<double> step();
  uint64_t steps_done() const { return steps_; }

  // Every word of weights and states, unit after unit.
  Result<Comparison> compare(engine::StepEngine& engine) const;
  // What the other ranks do while one compares: what each of them keeps is read by all together.
  static Status read_for_comparison(const TrainingSettings& settings, engine::StepEngine& engine);

 private:
  struct PlainUnit {
    Buffer weights;
    Buffer states;                      // resting planes, as one tile has them
    std::vector<float> over_ranks{};    // gradients of the ranks so far
    std::vector<std::byte> gradient{};  // complete, in the form's dtype
  };

  explicit PlainTraining(const TrainingSettings& settings);
  Status fill(uint32_t unit, std::span<const float> masters);
  at::Tensor computed_weights(uint32_t unit);
  // Of the rank whose passes have ended: sums by use in order, rounded once, added to those of the ranks before.
  void add_rank();
  // Rounded once more; the square of their norm.
  double finish_gradients();
  void update(uint32_t unit, const std::vector<Hyper>& groups, double gradient_scale);

  trainer::Accelerator& accelerator() override { return *accelerator_; }
  Result<std::vector<trainer::UnitWeights>> acquire(const trainer::ComputePass& pass) override;
  Status release(const trainer::ComputePass&) override { return Status(); }
  Status gradient(const trainer::ComputePass& pass, uint32_t unit, uint64_t first, Dtype dtype,
                  std::span<const std::byte> values) override;
  Status put(uint32_t, uint32_t, uint32_t, std::span<const std::byte>) override;
  Status get(uint32_t, uint32_t, uint32_t, std::span<std::byte>) override;

  const TrainingSettings& settings_;
  const std::shared_ptr<trainer::Accelerator> accelerator_;
  const StateForm form_;
  const RankCodes codes_;
  std::vector<PlainUnit> units_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> sums_;  // by unit and use
  std::vector<at::Tensor> on_device_;                                 // the weights that are lent
  trainer::TrainStep step_;
  trainer::LossScaler scaler_;
  uint64_t steps_ = 0, updates_ = 0;
  uint64_t batch_ = 0;  // the last
};

}  // namespace penstock::tools
