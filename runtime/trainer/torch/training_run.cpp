#include "runtime/trainer/torch/training_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "runtime/trainer/counter_random.h"
#include "runtime/trainer/torch/cuda_accelerator.h"
#include "runtime/trainer/torch/dry_step.h"
#include "runtime/trainer/torch/host_accelerator.h"

namespace penstock::trainer {
namespace {

// What threads, rings and malloc take besides what is planned.
constexpr uint64_t kOverheadBytes = 16 * kMiB;
// Of a device, where nobody says a budget: for what CUDA takes itself as kernels are first used.
constexpr uint64_t kDeviceReserveBytes = 512 * kMiB;

ComputeChoices choices_of(const TrainingSettings& settings) {
  return {.seed = settings.config.seed,
          .head_tokens = static_cast<int64_t>(settings.config.head_tokens),
          .head_rows = static_cast<int64_t>(settings.config.head_rows)};
}

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

}  // namespace

std::vector<MicroBatch> micro_batches_of(const TrainingSettings& settings, uint64_t batch) {
  std::vector<MicroBatch> batches;
  const uint64_t accumulation = settings.config.accumulation, sequences = settings.config.micro_batch;
  const uint64_t first = (batch - 1) * accumulation * settings.place.ranks + settings.first_micro_batch();
  for (uint64_t number = first; number < first + accumulation; ++number) {
    batches.push_back(settings.samples.batch(number * sequences, sequences));
  }
  return batches;
}

std::shared_ptr<Accelerator> accelerator_of(const TrainingSettings& settings) {
  return settings.accelerator ? settings.accelerator : std::make_shared<HostAccelerator>();
}

Status open_accelerator(TrainingSettings& settings) {
  if (settings.device.kind != ComputeDevice::Kind::cuda) {
    settings.accelerator = std::make_shared<HostAccelerator>();
    return Status();
  }
  const TrainConfig& config = settings.config;
  PENSTOCK_TRY_ASSIGN(
      accelerator, open_cuda_accelerator(
                       {.index = settings.device.index, .deterministic = config.deterministic, .tf32 = config.tf32}));
  settings.accelerator = std::move(accelerator);
  return give_budget(settings);
}

Status give_budget(TrainingSettings& settings) {
  const uint64_t free_bytes = settings.accelerator->free_bytes();
  uint64_t& budget = settings.engine.request.budgets.device_bytes;
  if (settings.config.device_budget.empty()) budget = free_bytes - std::min(free_bytes, kDeviceReserveBytes);
  settings.device_bytes = budget;
  if (budget > 0 && budget <= free_bytes) return Status();
  return Status(Code::kDoesNotFit,
                text("config: penstock.device_budget: ", bytes_text(budget), ": ", settings.accelerator->description(),
                     " has ", bytes_text(free_bytes), " free"),
                "a smaller budget, or end what else uses this device (nvidia-smi)");
}

namespace {

// What the tensors leave is the engine's arena.
Status divide_device(TrainingSettings& settings) {
  PlanRequest& request = settings.engine.request;
  const uint64_t tensor_bytes = settings.tensor_bytes;
  if (tensor_bytes >= settings.device_bytes) {
    return Status(Code::kDoesNotFit,
                  text("config: penstock.device_budget: ", bytes_text(settings.device_bytes),
                       ": tensors of a step need ", bytes_text(tensor_bytes), ", and nothing is left for weights"),
                  "a larger budget, smaller micro-batches or a smaller \"head_tokens\"");
  }
  request.budgets.device_bytes = request.machine.device_bytes = settings.device_bytes - tensor_bytes;
  return Status();
}

}  // namespace

Status measure_step(TrainingSettings& settings) {
  settings.accelerator = accelerator_of(settings);
  PlanRequest& request = settings.engine.request;
  const ComputeChoices choices = choices_of(settings);
  const std::vector<MicroBatch> batches = micro_batches_of(settings, settings.config.leave_out.batch_of(1));
  std::vector<Use>& uses = request.workload.uses;
  PENSTOCK_TRY_ASSIGN(dry, dry_step(settings.model, *settings.accelerator, choices, batches, settings.keeping()));
  for (size_t use = 0; use < uses.size(); ++use) {
    uses[use].forward_s = dry.uses[use].forward_s;
    uses[use].backward_s = dry.uses[use].backward_s;
    uses[use].activation_bytes = dry.uses[use].activation_bytes;
    uses[use].boundary_bytes = dry.uses[use].boundary_bytes;
  }
  settings.product_flops = dry.product_flops;
  settings.tensor_bytes = dry.tensor_bytes + settings.accelerator->left_between_tensors(dry.tensor_bytes);
  if (settings.config.eval_every > 0) {
    // What forward made of the micro-batches that are evaluated together, beyond those of a step.
    const uint64_t together = evaluation_group(settings);
    const uint64_t more = together - std::min(together, settings.config.accumulation);
    settings.tensor_bytes += more * settings.config.micro_batch * settings.config.sequence_length *
                             settings.model.config.hidden * bytes_of(settings.model.dtype);
  }
  settings.tensor_bytes +=
      generation_bytes(settings.model, settings.prompts.prompts, settings.config.samples.max_new_tokens).all;
  request.process_bytes = dry.process_bytes + kOverheadBytes;
  if (settings.device_bytes > 0) return divide_device(settings);
  request.process_bytes += settings.tensor_bytes;
  return Status();
}

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

namespace {

Result<std::unique_ptr<engine::StepEngine>> open_engine(const TrainingSettings& settings, engine::Ranks* ranks) {
  if (ranks != nullptr && ranks->ranks() > 1) {
    PENSTOCK_TRY_ASSIGN(engine, engine::RankedEngine::open(settings.ranked(), *ranks));
    return std::unique_ptr<engine::StepEngine>(std::move(engine));
  }
  PENSTOCK_TRY_ASSIGN(engine, engine::Engine::open(settings.engine));
  return std::unique_ptr<engine::StepEngine>(std::move(engine));
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

uint64_t evaluation_group(const TrainingSettings& settings) {
  constexpr uint64_t kHiddenMostBytes = 64 * kMiB;
  const uint64_t tokens = settings.config.micro_batch * settings.config.sequence_length;
  const uint64_t bytes = tokens * settings.model.config.hidden * bytes_of(settings.model.dtype);
  return std::clamp<uint64_t>(kHiddenMostBytes / bytes, 1, evaluated_batches(settings).size());
}

std::vector<EvaluatedBatch> evaluated_batches(const TrainingSettings& settings) {
  const uint64_t sequences = settings.config.micro_batch, most = settings.config.eval_batches;
  const std::vector<Samples::HeldOut> sets = settings.samples.held_out_of_sets();
  std::vector<EvaluatedBatch> batches;
  for (size_t set = 0; set < sets.size(); ++set) {
    const uint64_t all = ceil_div(sets[set].count, sequences);
    for (uint64_t i = 0; i < (most == 0 ? all : std::min(all, most)); ++i) {
      batches.push_back({set, sets[set].first + i * sequences, std::min(sequences, sets[set].count - i * sequences)});
    }
  }
  return batches;
}

Result<std::vector<SetLoss>> TrainingRun::evaluate() {
  const std::vector<EvaluatedBatch> all = evaluated_batches(settings_);
  const uint64_t ranks = settings_.place.ranks, rank = settings_.place.rank, group = evaluation_group(settings_);
  std::vector<SetLoss> sets;
  for (const Samples::HeldOut& held_out : settings_.samples.held_out_of_sets()) sets.push_back({held_out.set, {}});
  PENSTOCK_TRY(engine_->begin_forward());
  // Each rank has its part of a group of all, at last maybe nothing: units are gathered from all of them.
  for (uint64_t first = 0; first < all.size(); first += group * ranks) {
    const uint64_t begin = std::min<uint64_t>(all.size(), first + rank * group);
    const uint64_t end = std::min<uint64_t>(all.size(), begin + group);
    std::vector<MicroBatch> batches;
    for (uint64_t i = begin; i < end; ++i) {
      batches.push_back(settings_.samples.held_out_batch(all[i].first, all[i].count));
    }
    Result<std::vector<StepLoss>> losses = step_.evaluate(batches);
    if (!losses.ok()) {
      if (ranks > 1) return engine_->give_up(losses.status());
      (void)engine_->end_forward();
      return losses.status();
    }
    for (uint64_t i = begin; i < end; ++i) {
      StepLoss& of_set = sets[all[i].set].loss;
      of_set = sum_of(std::array{of_set, (*losses)[i - begin]});
    }
  }
  PENSTOCK_TRY(engine_->end_forward());
  for (SetLoss& set : sets) {
    PENSTOCK_TRY_ASSIGN(added, added_over_ranks(settings_, *engine_, {.loss = set.loss}));
    set.loss = added.loss;
  }
  return sets;
}

uint64_t prompt_tokens_together(const TrainingSettings& settings) {
  return settings.config.micro_batch * settings.config.sequence_length;
}

Status TrainingRun::take_from_first_rank(std::span<int32_t> tokens) {
  const std::vector<uint64_t> mine(tokens.begin(), tokens.end());
  std::vector<uint64_t> all(mine.size() * settings_.place.ranks);
  PENSTOCK_TRY(engine_->exchange(mine, all));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(all[i]);
  return Status();
}

Question question_of(const TrainingSettings& settings, uint64_t number) {
  constexpr uint64_t kStream = 0x73616d706c6573;  // "samples": apart from what dropout draws
  const SampleConfig& config = settings.config.samples;
  return {.prompts = settings.prompts.prompts,
          .ends = settings.prompts.ends,
          .new_tokens = config.max_new_tokens,
          .rules = config.rules,
          .key = stream_key(config.seed.value_or(settings.config.seed), kStream, number),
          .tokens_together = prompt_tokens_together(settings)};
}

Result<std::vector<Continuation>> TrainingRun::answer(uint64_t number) {
  Question question = question_of(settings_, number);
  question.agree = [this](std::span<int32_t> chosen) { return take_from_first_rank(chosen); };
  PENSTOCK_TRY(engine_->begin_forward());
  Result<std::vector<Continuation>> answers = generate(settings_.model, link_, question);
  if (!answers.ok() && settings_.place.ranks > 1) return engine_->give_up(answers.status());
  const Status ended = engine_->end_forward();
  if (answers.ok() && !ended.ok()) return ended;
  return answers;
}

}  // namespace penstock::trainer
