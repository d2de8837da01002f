// `penstock verify` of a training run: its first steps by the tiers and by a plain loop.
#include <filesystem>

#include "aio/available_memory.h"
#include "runtime/trainer/torch/cuda_accelerator.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/store_flags.h"
#include "tools/penstock/train_flags.h"
#include "tools/penstock/update_common.h"
#include "tools/system/interrupt.h"
#include "tools/train/gathering_of_run.h"
#include "tools/train/placements.h"
#include "tools/train/plain_training.h"
#include "tools/train/run_start.h"
#include "tools/train/tiered_steps.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kVerifiedSteps = 5;

// What ranks keep, as zero_optimization says it.
struct Sharing {
  std::string name;
  uint32_t stage = 0;
  uint32_t shard_ranks = 0;
};

// As many as have one copy of the model together in the hybrid stage: the config's, those of a host, or the most that
// leave several copies. 0: so many ranks cannot be divided.
uint32_t hybrid_ranks(const trainer::TrainConfig& config, const engine::RankPlace& place) {
  if (config.shard_ranks > 1 && config.shard_ranks < place.ranks) return config.shard_ranks;
  if (place.hosts > 1) return place.ranks_here() > 1 ? place.ranks_here() : 0;
  for (uint32_t group = place.ranks / 2; group > 1; --group) {
    if (place.ranks % group == 0) return group;
  }
  return 0;
}

// Of those that leave the same bits, one of each kind: stage 0 gathers no weights, in codes or otherwise.
std::vector<Sharing> all_sharings(const trainer::TrainConfig& config, const engine::RankPlace& place) {
  std::vector<Sharing> all;
  if (!config.codes.weights && !config.codes.frozen_weights) all.push_back({"stage 0", 0});
  all.insert(all.end(), {{"stage 2", 2}, {"stage 3", 3}});
  if (const uint32_t group = hybrid_ranks(config, place); group > 0)
    all.push_back({text("stage 3 within every ", group), 3, group});
  return all;
}

void share_by(const Sharing& sharing, trainer::TrainConfig& config) {
  config.zero_stage = sharing.stage;
  config.shard_ranks = sharing.shard_ranks;
}

// A store for the time of a comparison, in a folder of its own beside each of the run's.
class ScratchStores {
 public:
  // The first rank of each host removes them.
  ScratchStores(const std::vector<std::string>& beside, uint32_t rank_here) : rank_here_(rank_here) {
    for (const std::string& folder : beside) folders_.push_back(folder + "/verify");
  }
  ~ScratchStores() {
    std::error_code ignored;
    if (rank_here_ != 0) return;
    for (const std::string& folder : folders_) std::filesystem::remove_all(folder, ignored);
  }
  const std::vector<std::string>& folders() const { return folders_; }

 private:
  const uint32_t rank_here_;
  std::vector<std::string> folders_;
};

Status refuse_plain_loop_without_memory(const TrainingSettings& settings) {
  const aio::AvailableMemory available = aio::AvailableMemory::now();
  const uint64_t needed_bytes = PlainTraining::bytes_needed(settings);
  if (needed_bytes <= available.bytes) return Status();
  return Status(
      Code::kDoesNotFit,
      text("verify: the plain loop over ", settings.model.parameters(), " parameters needs ", bytes_text(needed_bytes),
           " of memory beside the budget, ", bytes_text(available.bytes), " are available by ", available.limited_by),
      "verify a model of the same shape with fewer layers");
}

// The run that the flags name, on scratch stores.
Result<TrainingSettings> scratch_settings(trainer::TrainConfig config, const engine::RankPlace& place,
                                          const ScratchStores& scratch, MadeFolders& made) {
  config.stores = scratch.folders();
  // The plain loop leaves out what the config does, and stops at nothing.
  config.loss_rules = {.not_finite = trainer::LossAction::ignore};
  PENSTOCK_TRY_ASSIGN(settings, settings_of(config, std::nullopt, place, trainer::cuda_usable));
  if (place.rank_here() != 0) return settings;
  for (const std::string& folder : config.stores) PENSTOCK_TRY(made.make(folder));
  PENSTOCK_TRY(refuse_repeated_folders("--store", config.stores));
  return settings;
}

// The plain loop after its steps, with their losses.
struct PlainSteps {
  std::unique_ptr<PlainTraining> training;
  std::vector<double> losses = {};
};

Result<PlainSteps> take_plain_steps(const TrainingSettings& settings, uint64_t steps, const Tick& tick) {
  PENSTOCK_TRY_ASSIGN(plain, PlainTraining::make(settings));
  PlainSteps taken{.training = std::move(plain)};
  while (taken.losses.size() < steps) {
    PENSTOCK_TRY(tick(static_cast<double>(taken.losses.size()) / static_cast<double>(steps)));
    PENSTOCK_TRY_ASSIGN(loss, taken.training->step());
    taken.losses.push_back(loss);
  }
  return taken;
}

uint64_t different(const std::vector<double>& one, const std::vector<double>& other) {
  uint64_t count = 0;
  for (size_t i = 0; i < one.size(); ++i) count += one[i] != other[i];
  return count;
}

void count_losses(Answer& answer, uint64_t losses_different, uint64_t steps) {
  answer.json["losses_different"] = losses_different;
  if (answer.verdict.ok() && losses_different > 0) {
    answer.verdict = Status(Code::kComparison, text("verify: ", losses_different, " of ", steps, " losses differ"),
                            "report it: this must not happen");
  }
}

Result<Answer> verify_once(Session& session, const TrainingSettings& settings, uint64_t steps) {
  PENSTOCK_TRY_ASSIGN(tiered, take_tiered_steps(settings, steps, ticking(session, "tiered steps", 0, 0.5)));
  PENSTOCK_TRY_ASSIGN(plain, take_plain_steps(settings, steps, ticking(session, "plain steps", 0.5)));
  PENSTOCK_TRY_ASSIGN(comparison, plain.training->compare(tiered.run->engine()));
  Answer answer = answer_to_comparison(comparison, steps);
  const uint64_t losses_different = different(tiered.losses, plain.losses);
  Json log = Json::array();
  for (size_t i = 0; i < steps; ++i)
    log.push_back({{"step", i + 1}, {"tiered_loss", tiered.losses[i]}, {"plain_loss", plain.losses[i]}});
  count_losses(answer, losses_different, steps);
  answer.json["log"] = log;
  answer.text += text("loss ", fixed(tiered.losses.front(), 4), " to ", fixed(tiered.losses.back(), 4),
                      ", equal to the last bit in ", steps - losses_different, " of ", steps, " steps\n");
  return answer;
}

// The plain loop once, and the tiers in every placement. Ends at the first that differs.
Result<Answer> verify_grid(Session& session, const TrainingSettings& settings, uint64_t steps) {
  const std::vector<GridCase> placements =
      all_placements(static_cast<uint32_t>(settings.config.accumulation), settings.device.kind);
  PENSTOCK_TRY_ASSIGN(plain, take_plain_steps(settings, steps, ticking(session, "plain steps", 0, 0.05)));
  Comparison all;
  uint64_t losses_different = 0, struck = 0, skipped = 0;
  Json rows = Json::array();
  for (size_t i = 0; i < placements.size() && losses_different == 0 && !all.first; ++i) {
    const TrainingSettings here = placed(settings, placements[i]);
    const double share = static_cast<double>(i) / static_cast<double>(placements.size());
    session.progress.update(0.05 + 0.95 * share, placements[i].name);
    Result<TieredSteps> tiered = take_tiered_steps(here, steps, [](double) { return check_interrupted(); });
    if (!tiered.ok()) return tiered.status().within(placements[i].name);
    PENSTOCK_TRY_ASSIGN(found, plain.training->compare(tiered->run->engine()));
    all.add(found, placements[i].name);
    losses_different = different(tiered->losses, plain.losses);
    struck += tiered->struck, skipped += tiered->skipped;
    rows.push_back({{"placement", placements[i].name},
                    {"words_different", found.words_different},
                    {"losses_different", losses_different}});
  }
  Answer answer = answer_to_comparison(all, steps);
  count_losses(answer, losses_different, steps);
  answer.json["placements"] = rows;
  answer.json["steps_struck"] = struck;
  answer.json["steps_skipped"] = skipped;
  answer.text = text(rows.size(), " of ", placements.size(), " placements: ", answer.text, struck,
                     " steps were clipped, ", skipped, " skipped\n");
  return answer;
}

// Rank 0's, which holds it against the tiers of all.
Result<PlainSteps> plain_steps_of_ranks(Session& session, const TrainingSettings& settings, uint64_t steps) {
  PENSTOCK_TRY(refuse_plain_loop_without_memory(settings));
  return take_plain_steps(settings, steps, ticking(session, "plain steps", 0, 0.5));
}

// Rank 0 has the plain loop of all ranks, and compares. Stages are equal among one another where each is equal to it.
Result<Answer> verify_ranks(Session& session, const TrainingSettings& given, uint64_t steps) {
  constexpr std::chrono::hours kPlainLoopAtMost{24};  // the others wait for it
  Prepared prepared{.settings = given, .stored = {}};
  TrainingSettings& settings = prepared.settings;
  const bool compares = settings.place.rank == 0;
  Result<PlainSteps> plain = PlainSteps();
  if (compares) plain = plain_steps_of_ranks(session, settings, steps);
  if (!plain.ok() && settings.place.hosts > 1) tell_others(settings.place, plain.status());
  PENSTOCK_TRY(plain.status());
  const std::vector<Sharing> sharings = all_sharings(settings.config, settings.place);
  if (may_gather_on_devices(settings)) {
    PENSTOCK_TRY_ASSIGN(met, meet_others(session, settings, {}, kPlainLoopAtMost));
    PENSTOCK_TRY_ASSIGN(where, choose_gathering(settings, *met));
    session.progress.note(where);
  }
  SharedBytes shared;
  for (const Sharing& sharing : sharings) {
    share_by(sharing, settings.config);
    const SharedBytes here = shared_bytes_of(settings);
    shared = {.host = std::max(shared.host, here.host),
              .device = std::max(shared.device, here.device),
              .staging = std::max(shared.staging, here.staging)};
  }
  PENSTOCK_TRY_ASSIGN(ranks, meet_others(session, settings, shared, kPlainLoopAtMost));
  PENSTOCK_TRY(expect_one_run(ranks.get(), prepared));
  PENSTOCK_TRY(measure(session, settings, ranks.get()));
  Comparison all;
  uint64_t losses_different = 0;
  Json rows = Json::array();
  for (const Sharing& sharing : sharings) {
    share_by(sharing, settings.config);
    const std::string& name = sharing.name;
    PENSTOCK_TRY_ASSIGN(tiered, take_tiered_steps(settings, steps, ticking(session, name, 0.5), ranks.get()));
    if (!compares) {
      PENSTOCK_TRY(PlainTraining::read_for_comparison(settings, tiered.run->engine()));
      continue;
    }
    PENSTOCK_TRY_ASSIGN(found, plain->training->compare(tiered.run->engine()));
    all.add(found, name);
    losses_different += different(tiered.losses, plain->losses);
    rows.push_back({{"placement", name},
                    {"words_different", found.words_different},
                    {"losses_different", different(tiered.losses, plain->losses)}});
  }
  if (!compares) {
    Answer answer;
    answer.is_for_rank_0 = true;
    return answer;
  }
  Answer answer = answer_to_comparison(all, steps);
  count_losses(answer, losses_different, steps * sharings.size());
  answer.json["ranks"] = settings.place.ranks;
  answer.json["placements"] = rows;
  std::string names;
  for (const Sharing& sharing : sharings) names += (names.empty() ? "" : ", ") + sharing.name;
  answer.text = text(settings.place.ranks, " ranks, ", names, ": ", answer.text, "loss ",
                     fixed(plain->losses.front(), 4), " to ", fixed(plain->losses.back(), 4), "\n");
  return answer;
}

Result<Answer> verify(Session& session, const TrainFlags& given) {
  TrainFlags flags = given;
  const uint64_t steps = flags.steps.value_or(kVerifiedSteps);
  flags.steps.reset();  // the schedule is that of the whole run
  flags.force = true;   // and the store's own steps do not matter
  PENSTOCK_TRY_ASSIGN(prepared, prepare(session, flags, Data::is_any));
  const engine::RankPlace place = prepared.settings.place;
  if (place.rank != 0) session.progress.silence();
  if (place.ranks > 1 && flags.grid) {
    return Status(Code::kUsage, "--grid: goes through the placements of one rank, and there are several",
                  "leave out --grid, or --ranks");
  }
  MadeFolders made;
  if (place.rank_here() == 0) {
    for (const std::string& folder : prepared.settings.config.stores) PENSTOCK_TRY(made.make(folder));
  }
  const ScratchStores scratch(prepared.settings.config.stores, place.rank_here());
  MadeFolders made_inside;
  PENSTOCK_TRY_ASSIGN(settings, scratch_settings(prepared.settings.config, place, scratch, made_inside));
  if (place.ranks > 1) return verify_ranks(session, settings, steps);
  // What holds activations elsewhere needs no less than what has them.
  if (flags.grid) settings.engine.request.stores_activations = true;
  PENSTOCK_TRY(measure(session, settings));
  PENSTOCK_TRY(refuse_plain_loop_without_memory(settings));
  return flags.grid ? verify_grid(session, settings, steps) : verify_once(session, settings, steps);
}

}  // namespace

Verb verify_training_verb() {
  auto flags = std::make_shared<TrainFlags>();
  return {"verify", "", "", {}, [flags](Options& options) -> Action {
            train_options(options, *flags, TrainOptions::of_steps);
            options.flag("--force", flags->force, "");
            options.flag("--grid", flags->grid, "");
            return [flags](Session& session) { return verify(session, *flags); };
          }};
}

}  // namespace penstock::tools
