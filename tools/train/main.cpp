// penstock-trainer: the part of the command that stands on LibTorch. `penstock train` starts it.
#include <algorithm>
#include <filesystem>

#include "runtime/trainer/config/effective_config.h"
#include "tools/penstock/store_flags.h"
#include "tools/penstock/train_flags.h"
#include "tools/system/interrupt.h"
#include "tools/system/standard_streams.h"
#include "tools/system/words.h"
#include "tools/train/config_of_run.h"
#include "tools/train/gathering_of_run.h"
#include "tools/train/generate.h"
#include "tools/train/measure_compute.h"
#include "tools/train/run_folder.h"
#include "tools/train/run_prompts.h"
#include "tools/train/run_report.h"
#include "tools/train/run_start.h"
#include "tools/train/snapshots.h"
#include "tools/train/stage_of_run.h"
#include "tools/train/store_of_run.h"
#include "tools/train/train_loop.h"

namespace penstock::tools {
namespace {

// On every host the first of its ranks makes the folders.
Status make_folders(const TrainingSettings& settings, MadeFolders& made) {
  if (settings.place.rank_here() != 0) return Status();
  for (const std::string& folder : settings.config.stores) PENSTOCK_TRY(made.make(folder));
  return refuse_repeated_folders("--store", settings.config.stores);
}

// Each of the two is locked as a whole.
Status refuse_run_in_store(const trainer::TrainConfig& config) {
  for (const std::string& store : config.stores) {
    if (!config.run.empty() && is_same_path(config.run, store))
      return Status(Code::kUsage, text("--run: ", config.run, ": is the store's folder"),
                    text("--run ", shell_word(config.run + "/run")));
  }
  return Status();
}

// The run is made or resumed.
Result<std::unique_ptr<trainer::TrainingRun>> open_run(Session& session, const TrainFlags& flags,
                                                       const Prepared& prepared, engine::Ranks* ranks) {
  const TrainingSettings& settings = prepared.settings;
  engine::KeptTogether kept = kept_of(settings, ranks);
  if (prepared.stored) {
    PENSTOCK_TRY_ASSIGN(back, kept.finish_rollback(ticking(session, "roll back")));
    if (back) session.progress.note(text("store: a rollback to step ", *back, " was cut short, and is done now"));
  } else {
    using Existing = aio::CreateOptions::Existing;
    PENSTOCK_TRY(kept.forget_rollback());
    if (prepared.makes_anew) session.progress.note("store: its making was cut short; it is made anew");
    PENSTOCK_TRY(make_store(settings, flags.force || prepared.makes_anew ? Existing::replace : Existing::refuse,
                            ticking(session, "make the store"), ranks));
    if (const std::vector<std::string> left = kept.left_by_others(); !left.empty())
      session.progress.note(text("store: ", left.front(),
                                 left.size() > 1 ? text(" and ", left.size() - 1, " more") : "",
                                 ": kept of the store before; nothing reads it, and it may be removed"));
  }
  PENSTOCK_TRY_ASSIGN(run, trainer::TrainingRun::open(settings, ranks));
  for (const std::string& remark : run->engine().remarks()) session.progress.note("store: " + remark);
  PENSTOCK_TRY_ASSIGN(removed, kept.drop_incomplete());
  for (const std::string& snapshot : removed) session.progress.note("store: " + snapshot);
  if (prepared.stored) {
    for (const std::string& change : changes_since(settings, *prepared.stored))
      session.progress.note("config: changed: " + change);
  }
  if (run->engine().steps_done() > 0) session.progress.note(text("resuming after step ", run->engine().steps_done()));
  return std::move(run);
}

// The ranks meet anew: what they share follows from the stage, and from where they gather weights.
Status settle_sharing(Session& session, Prepared& prepared, std::unique_ptr<engine::Ranks>& ranks) {
  constexpr std::chrono::seconds kComeWithin{60};  // they were all here
  TrainingSettings& settings = prepared.settings;
  if (may_gather_on_devices(settings)) {
    PENSTOCK_TRY_ASSIGN(where, choose_gathering(settings, *ranks));
    session.progress.note(where);
  }
  if (leaves_stage_open(settings)) {
    PENSTOCK_TRY_ASSIGN(chosen, choose_stage(settings, prepared.stored.has_value(), *ranks));
    session.progress.note(chosen);
  }
  ranks.reset();
  PENSTOCK_TRY_ASSIGN(again, meet_others(session, settings, shared_bytes_of(settings), kComeWithin));
  ranks = std::move(again);
  return Status();
}

Status interrupted_before_steps(const Status& ended, const Prepared& prepared) {
  if (ended.code() != Code::kInterrupted) return ended;
  return Status(ended.code(),
                text("interrupted before the first step: ",
                     prepared.stored || prepared.replaces ? "the store is as it was" : "no store has been made"),
                "the same command measures again, and goes on");
}

Result<Answer> train_prepared(Session& session, const TrainFlags& flags, Prepared& prepared) {
  TrainingSettings& settings = prepared.settings;
  if (settings.config.sample_every > 0) PENSTOCK_TRY(find_prompts(settings));
  const bool speaks = settings.place.rank == 0;  // and keeps the log
  if (!speaks) session.progress.silence();
  settings.engine.on_new_plan = [&session](const std::string& line) { session.progress.note(line); };
  const bool is_open = leaves_stage_open(settings) || may_gather_on_devices(settings);
  const SharedBytes shared = settings.place.ranks == 1 || is_open ? SharedBytes() : shared_bytes_of(settings);
  PENSTOCK_TRY_ASSIGN(ranks, meet_others(session, settings, shared));
  PENSTOCK_TRY(expect_one_run(ranks.get(), prepared));
  const std::string folder = speaks ? settings.config.run : "";
  PENSTOCK_TRY(agreed(ranks.get(), refuse_run_in_store(settings.config)));
  std::error_code unknown;
  const bool is_new = !folder.empty() && !std::filesystem::exists(folder, unknown);
  const Result<RunFolder> run_folder = flags.dry_run ? Result<RunFolder>(RunFolder()) : RunFolder::open(folder);
  PENSTOCK_TRY(agreed(ranks.get(), run_folder.status()));
  MadeFolders made;  // perhaps in that one
  PENSTOCK_TRY(agreed(ranks.get(), make_folders(settings, made)));
  PENSTOCK_TRY(interrupted_before_steps(measure(session, settings, ranks.get()), prepared));
  if (is_open) PENSTOCK_TRY(settle_sharing(session, prepared, ranks));
  PENSTOCK_TRY(refuse_prompts_without_room(settings));
  if (flags.dry_run) return dry_run_answer(settings);
  if (!prepared.stored) session.progress.note("config: " + trainer::effective_json(settings.config));
  PENSTOCK_TRY_ASSIGN(run, open_run(session, flags, prepared, ranks.get()));
  if (is_new && prepared.stored && !flags.run && run->engine().steps_done() > 0)
    session.progress.note(text("run: ", folder, ": is new here, and gets the log from step ",
                               run->engine().steps_done() + 1, " on; that of the steps before is not here"));
  const std::vector<std::string> before = stores_of_folder(folder);
  if (const std::vector<std::string>& now = settings.config.stores;
      !before.empty() && !std::ranges::equal(before, now, is_same_path))
    session.progress.note(text("run: ", folder, ": has the log of the store ", joined(before, ","), "; that of ",
                               joined(now, ","), " follows it"));
  PENSTOCK_TRY(agreed(ranks.get(), speaks ? write_run_config(settings) : Status()));
  PENSTOCK_TRY_ASSIGN(log, RunLog::open(folder));
  return TrainLoop(session, settings, ranks.get(), std::move(run), std::move(log), RunPlan(settings, folder)).run();
}

Result<Answer> train_as_rank(Session& session, const TrainFlags& flags) {
  PENSTOCK_TRY_ASSIGN(prepared, prepare(session, flags, flags.dry_run ? Data::is_any : Data::is_learnt));
  Result<Answer> answer = train_prepared(session, flags, prepared);
  if (!answer.ok()) return with_way_back(answer.status(), prepared.settings);
  return answer;
}

// Budgets are a node's, and what one of its ranks is short of, each of them is.
Result<Answer> train(Session& session, const TrainFlags& flags) {
  Result<Answer> answer = train_as_rank(session, flags);
  const Status& why = answer.status();
  const Result<engine::RankPlace> place = engine::find_rank_place();
  const bool is_of_each = place.ok() && place->ranks_here() > 1 && why.remedy().starts_with("raise --budget");
  if (!is_of_each) return answer;
  return Status(why.code(), why.message(), text(why.remedy(), ", for each of its ", place->ranks_here(), " ranks"));
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) {
  penstock::tools::hold_standard_streams();
  penstock::tools::watch_for_interrupts();
  return penstock::tools::run_command(
      {penstock::tools::train_verb_with(penstock::tools::train), penstock::tools::verify_training_verb(),
       penstock::tools::generate_verb_with(penstock::tools::generate), penstock::tools::measure_verb()},
      {argv + 1, argv + argc});
}
