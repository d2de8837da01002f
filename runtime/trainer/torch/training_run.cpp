#include "runtime/trainer/torch/training_run.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "runtime/trainer/torch/training_batches.h"
#include "runtime/trainer/torch/training_device.h"

namespace penstock::trainer {
namespace {

// Without a measurement nobody knows.
uint64_t tensor_limit(const TrainingSettings& settings, const Plan& plan) {
  if (settings.tensor_bytes == 0) return Accelerator::kNoLimit;
  uint64_t bytes = settings.tensor_bytes;
  if (settings.device_bytes > 0) return bytes;  // its share of the device, whatever the plan has in host memory
  for (const BudgetLine& line : plan.budget_lines) {
    const bool is_with_libtorch =
        line.region == Region::none && (line.name == "activations" || line.name == "unit being computed");
    if (is_with_libtorch) bytes += line.bytes;
  }
  return bytes;
}

Result<std::unique_ptr<engine::StepEngine>> open_engine(const TrainingSettings& settings, engine::Ranks* ranks) {
  if (ranks != nullptr && ranks->ranks() > 1) {
    PENSTOCK_TRY_ASSIGN(engine, engine::RankedEngine::open(settings.ranked(), *ranks));
    return std::unique_ptr<engine::StepEngine>(std::move(engine));
  }
  PENSTOCK_TRY_ASSIGN(engine, engine::Engine::open(settings.engine));
  return std::unique_ptr<engine::StepEngine>(std::move(engine));
}

}  // namespace

Result<Added> added_over_ranks(const TrainingSettings& settings, engine::StepEngine& engine, const Added& mine) {
  const std::array<uint64_t, 6> here = {
      std::bit_cast<uint64_t>(mine.loss.sum),        mine.loss.supervised, mine.loss.worst.number,
      std::bit_cast<uint64_t>(mine.loss.worst.loss), mine.read_bytes,      mine.written_bytes};
  std::vector<uint64_t> all(here.size() * settings.place.ranks);
  PENSTOCK_TRY(engine.exchange(here, all));
  Added added;
  for (size_t at = 0; at < all.size(); at += here.size()) {
    added.loss.sum += std::bit_cast<double>(all[at]);
    added.loss.supervised += all[at + 1];
    added.loss.worst.look_at({all[at + 2], std::bit_cast<double>(all[at + 3])});
    added.read_bytes += all[at + 4];
    added.written_bytes += all[at + 5];
  }
  return added;
}

Result<std::unique_ptr<TrainingRun>> TrainingRun::open(const TrainingSettings& settings, engine::Ranks* ranks) {
  PENSTOCK_TRY_ASSIGN(engine, open_engine(settings, ranks));
  std::unique_ptr<TrainingRun> run(new TrainingRun(settings, std::move(engine)));
  PENSTOCK_TRY(run->restore());
  return run;
}

void TrainingRun::give_back_memory() {
  accelerator_->give_back_tensors();
#if defined(__GLIBC__)
  malloc_trim(/*pad=*/0);
#endif
}

Status TrainingRun::restore() {
  if (engine_->steps_done() == 0) return Status();
  PENSTOCK_TRY_ASSIGN(state, parse_trainer_state(engine_->restored_state()));
  scaler_.restore(state.scale);
  patience_ = state.patience;
  // What the config leaves out of batches that were learnt comes too late.
  rules_state_ = state.rules;
  left_out_ = state.left_out;
  left_out_.add(settings_.config.leave_out.after(left_out_.batch_of(engine_->steps_done())));
  // Of its last step the root has the state before it; the engine counts the updates, so it knows how that ended.
  return scaler_.learn(engine_->steps_done(), engine_->updates_done() == state.updates);
}

TrainingRun::TrainingRun(const TrainingSettings& settings, std::unique_ptr<engine::StepEngine> engine)
    : settings_(settings),
      accelerator_(accelerator_of(settings)),
      engine_(std::move(engine)),
      link_(*engine_, *accelerator_),
      scaler_(settings.config.loss_scaling, settings.config.precision),
      left_out_(settings.config.leave_out),
      step_(settings.model, link_, choices_of(settings), engine_->plan().activations, settings.keeping()) {
  accelerator_->limit_tensors(tensor_limit(settings, engine_->plan()));
}

// The engine's memory goes: what is under way must not touch it any more.
TrainingRun::~TrainingRun() {
  (void)accelerator_->finish();
  accelerator_->limit_tensors(Accelerator::kNoLimit);
}

Result<TrainingRun::Computed> TrainingRun::compute() {
  const uint64_t number = engine_->steps_done() + 1;
  Computed computed{.step = number, .batch = left_out_.batch_of(number), .loss_scale = scaler_.scale()};
  std::vector<Hyper> groups = hypers_of(settings_.config, settings_.groups, number);
  for (Hyper& group : groups) group.lr *= rate_factor_of(rules_state_, number);
  computed.learning_rate = groups.front().lr;
  PENSTOCK_TRY(engine_->begin({.groups = groups,
                               .micro_batches = static_cast<uint32_t>(settings_.config.accumulation),
                               .loss_scale = computed.loss_scale}));
  // The engine may have taken another plan.
  step_.set_activations(engine_->plan().activations);
  accelerator_->limit_tensors(tensor_limit(settings_, engine_->plan()));
  const std::vector<MicroBatch> batches = micro_batches_of(settings_, computed.batch);
  // What a token of any rank counts for is known before backward begins.
  Added counted;
  for (const MicroBatch& mine : batches) counted.loss.supervised += mine.supervised();
  PENSTOCK_TRY_ASSIGN(of_all, added_over_ranks(settings_, *engine_, counted));
  const StepShare share{.first_micro_batch = settings_.first_micro_batch(), .supervised = of_all.loss.supervised};
  Result<StepLoss> loss = step_.run(number, batches, engine_->passes(), computed.loss_scale, share);
  if (!loss.ok()) return engine_->give_up(loss.status());
  PENSTOCK_TRY_ASSIGN(added, added_over_ranks(settings_, *engine_, {.loss = *loss}));
  computed.loss = added.loss;
  return computed;
}

// A step whose gradients are not finite the engine skips by itself, where it was told to.
Result<LossTrouble> TrainingRun::trouble_with(const Computed& computed) {
  const LossRules& rules = settings_.config.loss_rules;
  const LossTrouble trouble = trouble_of(rules, rules_state_, computed.loss.mean());
  const bool is_looked_for = rules.not_finite != LossAction::ignore && !settings_.config.skips_overflow();
  if (trouble != LossTrouble::none || !is_looked_for) return trouble;
  PENSTOCK_TRY_ASSIGN(norm, engine_->gradient_norm());
  return std::isfinite(norm) ? LossTrouble::none : LossTrouble::gradients;
}

Result<TrainingRun::Step> TrainingRun::step() {
  const LossRules& rules = settings_.config.loss_rules;
  std::vector<LossEvent> events;
  for (;;) {
    PENSTOCK_TRY_ASSIGN(computed, compute());
    PENSTOCK_TRY_ASSIGN(trouble, trouble_with(computed));
    const LossAction action = action_on(rules, rules_state_, trouble);
    if (action == LossAction::ignore) {
      PENSTOCK_TRY_ASSIGN(step, learn_from(computed));
      step.events = std::move(events);
      return step;
    }
    LossEvent event = event_of(computed, trouble);
    discarded_ = engine_->discard();
    if (action == LossAction::stop || action == LossAction::rollback) {
      Step step;
      step.events = std::move(events);
      step.ended_by = std::move(event);
      return step;
    }
    PENSTOCK_TRY(discarded_);
    left_out_.add({computed.batch, computed.batch});
    acted(rules, action, computed.step, rules_state_);
    event.rate_factor = rate_factor_of(rules_state_, computed.step);
    events.push_back(std::move(event));
  }
}

Result<TrainingRun::Step> TrainingRun::learn_from(const Computed& computed) {
  const double loss = computed.loss.mean();
  let_pass(settings_.config.loss_rules, loss, rules_state_);
  TrainerState state = settings_.initial_state();
  state.samples = computed.batch * settings_.config.train_batch;
  state.updates = engine_->updates_done();
  state.scale = scaler_.state();
  state.patience = patience_;
  state.left_out = left_out_.up_to(computed.batch);
  state.rules = rules_state_;
  PENSTOCK_TRY_ASSIGN(report, engine_->step(encode(state)));
  const bool is_skipped = report.verdict == Verdict::skip;
  PENSTOCK_TRY(scaler_.learn(computed.step, is_skipped));
  PENSTOCK_TRY_ASSIGN(added, added_over_ranks(settings_, *engine_, {{}, report.read_bytes, report.written_bytes}));
  report.read_bytes = added.read_bytes;
  report.written_bytes = added.written_bytes;
  return Step{report, computed.batch, loss, computed.learning_rate, computed.loss_scale};
}

LossEvent TrainingRun::event_of(const Computed& computed, LossTrouble trouble) const {
  constexpr uint64_t kSamplesMost = 8;
  const LossRules& rules = settings_.config.loss_rules;
  const uint64_t sequences = settings_.config.micro_batch, worst = computed.loss.worst.number;
  LossEvent event{.step = computed.step,
                  .batch = computed.batch,
                  .loss = computed.loss.mean(),
                  .trouble = trouble,
                  .named = trouble == LossTrouble::spike ? rules.spike : rules.not_finite,
                  .action = action_on(rules, rules_state_, trouble),
                  .micro_batch = worst + 1,
                  .micro_batch_loss = computed.loss.worst.loss};
  if (trouble == LossTrouble::spike) event.highest = highest_loss(rules, rules_state_);
  uint64_t first = (computed.batch - 1) * settings_.config.train_batch, count = settings_.config.train_batch;
  if (trouble == LossTrouble::gradients) {
    event.micro_batch = 0;
    event.micro_batch_loss = 0;
  } else {
    first += worst * sequences;
    count = sequences;
  }
  for (uint64_t i = 0; i < std::min(count, kSamplesMost); ++i)
    event.samples.push_back(settings_.samples.where(first + i));
  if (count > kSamplesMost) event.samples.push_back(text(count - kSamplesMost, " more"));
  return event;
}

Status TrainingRun::stop(const LossEvent& event) {
  const Status settled = discarded_.ok() ? engine_->settle() : discarded_;
  const std::string committed =
      settled.ok() ? text("step ", engine_->steps_done(), " is committed") : settled.message();
  return refusal_of(event, settings_.config.loss_rules, committed);
}

void TrainingRun::take_along(Experience experience) {
  left_out_ = std::move(experience.left_out);
  experience.rules.losses = std::move(rules_state_.losses);
  rules_state_ = std::move(experience.rules);
}

Result<bool> TrainingRun::any(bool here) {
  std::vector<uint64_t> all(settings_.place.ranks);
  PENSTOCK_TRY(engine_->exchange(std::array<uint64_t, 1>{here ? 1u : 0u}, all));
  return std::any_of(all.begin(), all.end(), [](uint64_t says) { return says != 0; });
}

}  // namespace penstock::trainer
