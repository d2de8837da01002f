#include "runtime/trainer/torch/training_run.h"

#include <algorithm>
#include <array>
#include <bit>

#include "runtime/trainer/counter_random.h"
#include "runtime/trainer/torch/dry_step.h"
#include "runtime/trainer/torch/tensor_memory.h"

namespace penstock::trainer {
namespace {

// What threads, rings and malloc take besides what is planned.
constexpr uint64_t kOverheadBytes = 16 * kMiB;
// What tensors that come and go leave unused between one another.
constexpr uint64_t kLeftBetweenTensorsBytes = 16 * kMiB;

ComputeChoices choices_of(const TrainingSettings& settings) {
  return {.seed = settings.config.seed,
          .head_tokens = static_cast<int64_t>(settings.config.head_tokens),
          .head_rows = static_cast<int64_t>(settings.config.head_rows)};
}

// Without a measurement nobody knows.
uint64_t tensor_limit(const TrainingSettings& settings, const Plan& plan) {
  if (settings.tensor_bytes == 0) return TensorMemory::kNoLimit;
  uint64_t bytes = settings.tensor_bytes;
  for (const BudgetLine& line : plan.budget_lines) {
    const bool is_with_libtorch =
        line.region == Region::none && (line.name == "activations" || line.name == "unit being computed");
    if (is_with_libtorch) bytes += line.bytes;
  }
  return bytes;
}

}  // namespace

std::vector<MicroBatch> batches_of(const TrainingSettings& settings, uint64_t step) {
  std::vector<MicroBatch> batches;
  const uint64_t accumulation = settings.config.accumulation, sequences = settings.config.micro_batch;
  const uint64_t first = (step - 1) * accumulation * settings.place.ranks + settings.first_micro_batch();
  for (uint64_t number = first; number < first + accumulation; ++number) {
    batches.push_back(settings.samples.batch(number * sequences, sequences));
  }
  return batches;
}

Status measure_step(TrainingSettings& settings) {
  PlanRequest& request = settings.engine.request;
  const ComputeChoices choices = choices_of(settings);
  const std::vector<MicroBatch> batches = batches_of(settings, 1);
  std::vector<Use>& uses = request.workload.uses;
  PENSTOCK_TRY_ASSIGN(dry, dry_step(settings.model, choices, batches, settings.keeping()));
  for (size_t use = 0; use < uses.size(); ++use) {
    uses[use].forward_s = dry.uses[use].forward_s;
    uses[use].backward_s = dry.uses[use].backward_s;
    uses[use].activation_bytes = dry.uses[use].activation_bytes;
    uses[use].boundary_bytes = dry.uses[use].boundary_bytes;
  }
  settings.tensor_bytes = dry.tensor_bytes + kLeftBetweenTensorsBytes;
  if (settings.config.eval_every > 0) {
    // What forward made of the micro-batches that are evaluated together, beyond those of a step.
    const uint64_t together = evaluation_group(settings);
    const uint64_t more = together - std::min(together, settings.config.accumulation);
    settings.tensor_bytes += more * settings.config.micro_batch * settings.config.sequence_length *
                             settings.model.config.hidden * bytes_of(settings.model.dtype);
  }
  settings.tensor_bytes +=
      generation_bytes(settings.model, settings.prompts.prompts, settings.config.samples.max_new_tokens).all;
  request.process_bytes = dry.process_bytes + settings.tensor_bytes + kOverheadBytes;
  return Status();
}

Result<Added> added_over_ranks(const TrainingSettings& settings, StepEngine& engine, const Added& mine) {
  const std::array<uint64_t, 4> here = {std::bit_cast<uint64_t>(mine.loss.sum), mine.loss.supervised, mine.read_bytes,
                                        mine.written_bytes};
  std::vector<uint64_t> all(here.size() * settings.place.ranks);
  PENSTOCK_TRY(engine.exchange(here, all));
  Added added;
  for (size_t at = 0; at < all.size(); at += here.size()) {
    added.loss.sum += std::bit_cast<double>(all[at]);
    added.loss.supervised += all[at + 1];
    added.read_bytes += all[at + 2];
    added.written_bytes += all[at + 3];
  }
  return added;
}

namespace {

Result<std::unique_ptr<StepEngine>> open_engine(const TrainingSettings& settings, engine::Ranks* ranks) {
  if (ranks != nullptr && ranks->ranks() > 1) {
    PENSTOCK_TRY_ASSIGN(engine, engine::RankedEngine::open(settings.ranked(), *ranks));
    return step_engine(std::move(engine));
  }
  PENSTOCK_TRY_ASSIGN(engine, engine::Engine::open(settings.engine));
  return step_engine(std::move(engine));
}

}  // namespace

Result<std::unique_ptr<TrainingRun>> TrainingRun::open(const TrainingSettings& settings, engine::Ranks* ranks) {
  PENSTOCK_TRY_ASSIGN(engine, open_engine(settings, ranks));
  std::unique_ptr<TrainingRun> run(new TrainingRun(settings, std::move(engine)));
  PENSTOCK_TRY(run->restore());
  return run;
}

Status TrainingRun::restore() {
  if (engine_->steps_done() == 0) return Status();
  PENSTOCK_TRY_ASSIGN(state, parse_trainer_state(engine_->restored_state()));
  scaler_.restore(state.scale);
  patience_ = state.patience;
  // Of its last step the root has the state before it; the engine counts the updates, so it knows how that ended.
  return scaler_.learn(engine_->steps_done(), engine_->updates_done() == state.updates);
}

TrainingRun::TrainingRun(const TrainingSettings& settings, std::unique_ptr<StepEngine> engine)
    : settings_(settings),
      engine_(std::move(engine)),
      link_(*engine_),
      scaler_(settings.config.loss_scaling, settings.config.precision),
      step_(settings.model, link_, choices_of(settings), engine_->plan().activations, settings.keeping()) {
  TensorMemory::get().set_limit(tensor_limit(settings, engine_->plan()));
}

TrainingRun::~TrainingRun() { TensorMemory::get().set_limit(TensorMemory::kNoLimit); }

Result<TrainingRun::Step> TrainingRun::step() {
  const uint64_t number = engine_->steps_done() + 1;
  const std::vector<Hyper> groups = hypers_of(settings_.config, settings_.groups, number);
  TrainerState state = settings_.initial_state();
  state.samples = number * settings_.config.train_batch;
  state.updates = engine_->updates_done();
  state.scale = scaler_.state();
  state.patience = patience_;
  const double scale = scaler_.scale();
  PENSTOCK_TRY(engine_->begin(
      {.groups = groups, .micro_batches = static_cast<uint32_t>(settings_.config.accumulation), .loss_scale = scale}));
  // The engine may have taken another plan.
  step_.set_activations(engine_->plan().activations);
  TensorMemory::get().set_limit(tensor_limit(settings_, engine_->plan()));
  const std::vector<MicroBatch> batches = batches_of(settings_, number);
  // What a token of any rank counts for is known before backward begins.
  Added counted;
  for (const MicroBatch& batch : batches) counted.loss.supervised += batch.supervised();
  PENSTOCK_TRY_ASSIGN(of_all, added_over_ranks(settings_, *engine_, counted));
  const StepShare share{.first_micro_batch = settings_.first_micro_batch(), .supervised = of_all.loss.supervised};
  Result<StepLoss> loss = step_.run(number, batches, link_.order(), scale, share);
  if (!loss.ok()) return engine_->give_up(loss.status());
  PENSTOCK_TRY_ASSIGN(report, engine_->step(encode(state)));
  PENSTOCK_TRY(scaler_.learn(number, report.verdict == penstock::Verdict::skip));
  PENSTOCK_TRY_ASSIGN(added, added_over_ranks(settings_, *engine_, {*loss, report.read_bytes, report.written_bytes}));
  report.read_bytes = added.read_bytes;
  report.written_bytes = added.written_bytes;
  return Step{report, added.loss.mean(), groups.front().lr, scale};
}

Result<bool> TrainingRun::any(bool here) {
  std::vector<uint64_t> all(settings_.place.ranks);
  PENSTOCK_TRY(engine_->exchange(std::array<uint64_t, 1>{here ? 1u : 0u}, all));
  return std::any_of(all.begin(), all.end(), [](uint64_t says) { return says != 0; });
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

Result<StepLoss> TrainingRun::evaluate() {
  const uint64_t sequences = settings_.config.micro_batch, held_out = settings_.samples.held_out_samples();
  const uint64_t all = evaluated_micro_batches(settings_), group = evaluation_group(settings_);
  const uint64_t ranks = settings_.place.ranks, rank = settings_.place.rank;
  StepLoss loss;
  PENSTOCK_TRY(engine_->begin_forward());
  // Each rank has its part of a group of all, at last maybe nothing: units are gathered from all of them.
  for (uint64_t first = 0; first < all; first += group * ranks) {
    std::vector<MicroBatch> batches;
    for (uint64_t mb = first + rank * group; mb < std::min(all, first + (rank + 1) * group); ++mb) {
      const uint64_t sample = mb * sequences;
      batches.push_back(settings_.samples.held_out_batch(sample, std::min(sequences, held_out - sample)));
    }
    Result<StepLoss> part = step_.evaluate(batches);
    if (!part.ok()) {
      if (ranks > 1) return engine_->give_up(part.status());
      (void)engine_->end_forward();
      return part.status();
    }
    loss.sum += part->sum;
    loss.supervised += part->supervised;
  }
  PENSTOCK_TRY(engine_->end_forward());
  PENSTOCK_TRY_ASSIGN(added, added_over_ranks(settings_, *engine_, {.loss = loss}));
  return added.loss;
}

uint64_t prompt_tokens_together(const TrainingSettings& settings) {
  return settings.config.micro_batch * settings.config.sequence_length;
}

Result<std::vector<Continuation>> TrainingRun::answer(uint64_t number) {
  constexpr uint64_t kStream = 0x73616d706c6573;  // "samples": apart from what dropout draws
  const SampleConfig& config = settings_.config.samples;
  const Question question{.prompts = settings_.prompts.prompts,
                          .ends = settings_.prompts.ends,
                          .new_tokens = config.max_new_tokens,
                          .rules = config.rules,
                          .key = stream_key(settings_.config.seed, kStream, number),
                          .tokens_together = prompt_tokens_together(settings_)};
  PENSTOCK_TRY(engine_->begin_forward());
  Result<std::vector<Continuation>> answers = generate(settings_.model, link_, question);
  const Status ended = engine_->end_forward();
  if (answers.ok() && !ended.ok()) return ended;
  return answers;
}

}  // namespace penstock::trainer
