#include "tools/train/training_run.h"

#include <algorithm>
#include <chrono>
#include <fstream>

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
  if (settings.config.eval_every > 0) {
    // What forward made of the micro-batches that are evaluated together, beyond those of a step.
    const uint64_t together = evaluation_group(settings);
    const uint64_t more = together - std::min(together, settings.config.accumulation);
    settings.engine.request.process_bytes += more * settings.config.micro_batch * settings.config.sequence_length *
                                             settings.model.config.hidden * bytes_of(settings.model.dtype);
  }
  return Status();
}

Result<std::unique_ptr<TrainingRun>> TrainingRun::open(const TrainingSettings& settings) {
  PENSTOCK_TRY_ASSIGN(engine, engine::Engine::open(settings.engine));
  std::unique_ptr<TrainingRun> run(new TrainingRun(settings, std::move(engine)));
  PENSTOCK_TRY(run->restore());
  return run;
}

Status TrainingRun::restore() {
  if (engine_->steps_done() == 0) return Status();
  PENSTOCK_TRY_ASSIGN(state, trainer::parse_trainer_state(engine_->restored_state()));
  scaler_.restore(state.scale);
  // Of its last step the root has the state before it; the engine counts the updates, so it knows how that ended.
  return scaler_.learn(engine_->steps_done(), engine_->updates_done() == state.updates);
}

TrainingRun::TrainingRun(const TrainingSettings& settings, std::unique_ptr<engine::Engine> engine)
    : settings_(settings),
      engine_(std::move(engine)),
      link_(*engine_),
      scaler_(settings.config.loss_scaling, settings.config.precision),
      step_(settings.model, link_, choices_of(settings), activations_of(settings)) {}

Result<TrainingRun::Step> TrainingRun::step() {
  const uint64_t number = engine_->steps_done() + 1;
  const std::vector<Hyper> groups = trainer::hypers_of(settings_.config, settings_.groups, number);
  trainer::TrainerState state = settings_.initial_state();
  state.samples = number * settings_.config.train_batch;
  state.updates = engine_->updates_done();
  state.scale = scaler_.state();
  const double scale = scaler_.scale();
  PENSTOCK_TRY(engine_->begin(
      {.groups = groups, .micro_batches = static_cast<uint32_t>(settings_.config.accumulation), .loss_scale = scale}));
  const std::vector<trainer::MicroBatch> batches = batches_of(settings_, number);
  Result<trainer::StepLoss> loss = step_.run(number, batches, link_.order(), scale);
  if (!loss.ok()) {
    (void)engine_->discard();  // what it says, the engine's status says too
    return loss.status();
  }
  PENSTOCK_TRY_ASSIGN(report, engine_->step(encode(state)));
  PENSTOCK_TRY(scaler_.learn(number, report.verdict == Verdict::skip));
  return Step{report, loss->mean(), groups.front().lr, scale};
}

uint64_t evaluation_group(const TrainingSettings& settings) {
  constexpr uint64_t kHiddenMostBytes = 64 * kMiB;
  const uint64_t tokens = settings.config.micro_batch * settings.config.sequence_length;
  const uint64_t bytes = tokens * settings.model.config.hidden * bytes_of(settings.model.dtype);
  return std::clamp<uint64_t>(kHiddenMostBytes / bytes, 1, evaluated_micro_batches(settings));
}

uint64_t evaluated_micro_batches(const TrainingSettings& settings) {
  const uint64_t all = ceil_div(settings.samples.held_out_samples(), settings.config.micro_batch);
  return settings.config.eval_batches == 0 ? all : std::min(all, settings.config.eval_batches);
}

Result<trainer::StepLoss> TrainingRun::evaluate() {
  const uint64_t sequences = settings_.config.micro_batch, held_out = settings_.samples.held_out_samples();
  const uint64_t all = evaluated_micro_batches(settings_), group = evaluation_group(settings_);
  trainer::StepLoss loss;
  PENSTOCK_TRY(engine_->begin_forward());
  for (uint64_t first = 0; first < all; first += group) {
    std::vector<trainer::MicroBatch> batches;
    for (uint64_t mb = first; mb < std::min(all, first + group); ++mb) {
      const uint64_t sample = mb * sequences;
      batches.push_back(settings_.samples.held_out_batch(sample, std::min(sequences, held_out - sample)));
    }
    Result<trainer::StepLoss> part = step_.evaluate(batches);
    if (!part.ok()) {
      (void)engine_->end_forward();
      return part.status();
    }
    loss.sum += part->sum;
    loss.supervised += part->supervised;
  }
  PENSTOCK_TRY(engine_->end_forward());
  return loss;
}

}  // namespace penstock::tools
