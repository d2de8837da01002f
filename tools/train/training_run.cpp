#include "tools/train/training_run.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include "runtime/trainer/files/model_folder.h"
#include "runtime/trainer/initial_values.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

using Clock = std::chrono::steady_clock;
using trainer::Passage;

// What threads and rings take besides what is planned, and what LibTorch's allocator leaves unused between tensors.
constexpr uint64_t kOverheadBytes = 32 * kMiB;

// Weights of zeros, for a step that is only timed. Every unit lies in the same place.
class ZeroWeights final : public trainer::EngineVerbs {
 public:
  ZeroWeights(const trainer::Model& model, std::vector<Use>& uses) : model_(model), uses_(uses) {
    uint64_t most = 0;
    for (const trainer::ModelUse& use : model.uses) {
      uint64_t bytes = 0;
      for (uint32_t unit : use.units) bytes += place_bytes(unit);
      most = std::max(most, bytes);
    }
    memory_ = Buffer::on_heap(most);
    std::fill(memory_.bytes().begin(), memory_.bytes().end(), std::byte{0});
  }

  uint64_t size_bytes() const { return memory_.size_bytes(); }

  Result<std::span<const trainer::UnitWeights>> acquire(const Passage& passage) override {
    lent_.clear();
    uint64_t at = 0;
    for (uint32_t unit : model_.uses[passage.use].units) {
      lent_.push_back({unit, memory_.data() + at, model_.units[unit].elements});
      at += place_bytes(unit);
    }
    began_ = Clock::now();
    return std::span<const trainer::UnitWeights>(lent_);
  }
  Status release(const Passage& passage) override {
    const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    Use& use = uses_[passage.use];
    double& fastest = passage.direction == trainer::Direction::forward ? use.forward_s : use.backward_s;
    fastest = fastest == 0 ? seconds : std::min(fastest, seconds);
    return Status();
  }
  Status gradient(const Passage&, uint32_t, uint64_t, Dtype, std::span<const std::byte>) override { return Status(); }
  Status absent(uint32_t, uint64_t) override { return Status(); }
  Status put(uint32_t, uint32_t, uint32_t, std::span<const std::byte>) override { return Status(); }
  Status get(uint32_t, uint32_t, uint32_t, std::span<std::byte>) override { return Status(); }

 private:
  uint64_t place_bytes(uint32_t unit) const {
    return round_up(model_.units[unit].elements * bytes_of(model_.dtype), kAlignmentBytes);
  }

  const trainer::Model& model_;
  std::vector<Use>& uses_;
  Buffer memory_;
  std::vector<trainer::UnitWeights> lent_;
  Clock::time_point began_;
};

trainer::ComputeChoices choices_of(const TrainingSettings& settings) {
  return {.seed = settings.config.seed,
          .head_tokens = static_cast<int64_t>(settings.config.head_tokens),
          .head_rows = static_cast<int64_t>(settings.config.head_rows)};
}

std::vector<ActivationChoice> activations_of(const TrainingSettings& settings) {
  return std::vector<ActivationChoice>(settings.model.uses.size(), settings.activations());
}

}  // namespace

std::vector<trainer::MicroBatch> batches_of(const TrainingSettings& settings, uint64_t step) {
  std::vector<trainer::MicroBatch> batches;
  const uint64_t accumulation = settings.config.accumulation, sequences = settings.config.micro_batch;
  for (uint64_t mb = 0; mb < accumulation; ++mb) {
    const uint64_t number = (step - 1) * accumulation + mb;
    batches.push_back(settings.samples.batch(number * sequences, sequences));
  }
  return batches;
}

Status measure_step(TrainingSettings& settings) {
  Workload& workload = settings.engine.request.workload;
  ZeroWeights zeros(settings.model, workload.uses);
  trainer::TrainStep step(settings.model, zeros, choices_of(settings), activations_of(settings));
  const std::vector<trainer::MicroBatch> batches = batches_of(settings, 1);
  PENSTOCK_TRY(step.check(batches));
  const auto group =
      static_cast<uint32_t>(settings.engine.request.choices.micro_batch_group.value_or(workload.micro_batches));
  const std::vector<Passage> order = trainer::step_order(settings.model, workload.micro_batches, group);
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak counts from here
  for (int pass = 0; pass < 2; ++pass) PENSTOCK_TRY(step.run(1, batches, order).status());
  for (Use& use : workload.uses) {
    // Recomputation was part of what was timed.
    if (recomputes(settings.activations())) use.backward_s = std::max(0.0, use.backward_s - use.forward_s);
  }
  settings.engine.request.process_bytes = resident_bytes_peak() - zeros.size_bytes() + kOverheadBytes;
  return Status();
}

Status TrainingRun::create(const TrainingSettings& settings, aio::CreateOptions::Existing existing, const Tick& tick) {
  std::unique_ptr<trainer::ModelFolder> folder;
  if (!settings.model_folder.empty()) {
    PENSTOCK_TRY_ASSIGN(opened, trainer::ModelFolder::open(settings.model_folder, settings.model));
    folder = std::move(opened);
  }
  auto initial = [&](uint32_t unit, uint64_t first, std::span<float> values) {
    if (folder != nullptr) {
      PENSTOCK_TRY(folder->read(unit, first, values));
    } else {
      trainer::fill_initial_values(settings.model, settings.config.seed, unit, first, values);
    }
    return tick(static_cast<double>(unit) / static_cast<double>(settings.model.units.size()));
  };
  return engine::Engine::create(settings.engine, initial, existing);
}

Result<std::unique_ptr<TrainingRun>> TrainingRun::open(const TrainingSettings& settings) {
  PENSTOCK_TRY_ASSIGN(engine, engine::Engine::open(settings.engine));
  return std::unique_ptr<TrainingRun>(new TrainingRun(settings, std::move(engine)));
}

TrainingRun::TrainingRun(const TrainingSettings& settings, std::unique_ptr<engine::Engine> engine)
    : settings_(settings),
      engine_(std::move(engine)),
      link_(*engine_),
      step_(settings.model, link_, choices_of(settings), activations_of(settings)) {}

Result<TrainingRun::Step> TrainingRun::step() {
  const uint64_t number = engine_->steps_done() + 1;
  const std::vector<Hyper> groups = trainer::hypers_of(settings_.config, settings_.groups, number);
  PENSTOCK_TRY(
      engine_->begin({.groups = groups, .micro_batches = static_cast<uint32_t>(settings_.config.accumulation)}));
  const std::vector<trainer::MicroBatch> batches = batches_of(settings_, number);
  Result<trainer::StepLoss> loss = step_.run(number, batches, link_.order());
  if (!loss.ok()) {
    (void)engine_->discard();  // what it says, the engine's status says too
    return loss.status();
  }
  PENSTOCK_TRY_ASSIGN(report, engine_->step(encode(settings_.state_after(number))));
  return Step{report, loss->mean(), groups.front().lr};
}

}  // namespace penstock::tools
