// The verbs that keep steps of a store, go back to one, and remove one.
#include "runtime/engine/step_before.h"
#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/checkpoint_snapshots.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::vector<std::string> paths;
  std::optional<uint64_t> step;
};

Result<std::unique_ptr<InspectedStores>> open_whole(const std::vector<std::string>& paths) {
  PENSTOCK_TRY_ASSIGN(stores, InspectedStores::open(paths));
  PENSTOCK_TRY(stores->expect_all_ranks());
  return std::move(stores);
}

Status missing_step(const InspectedStores& stores) {
  const std::vector<uint64_t> steps = stores.kept().steps();
  std::string kept, store;
  for (const uint64_t step : steps) kept += text(kept.empty() ? "" : ", ", step);
  for (const std::string& folder : stores.folders()) store += " " + folder;
  return Status(Code::kUsage, text("--step: missing; the store has snapshots of ", kept.empty() ? "no step" : kept),
                steps.empty() ? "penstock checkpoint snapshot" + store : text("--step ", steps.back()));
}

Status refuse_within_rollback(const engine::KeptTogether& kept) {
  const std::optional<uint64_t> step = kept.unfinished_rollback();
  if (!step) return Status();
  return Status(Code::kUsage, text("snapshots: a rollback to step ", *step, " was cut short"),
                "start the run again, which ends it");
}

Result<Answer> keep(Session& session, const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(stores, open_whole(flags.paths));
  engine::KeptTogether kept = stores->kept();
  PENSTOCK_TRY(refuse_within_rollback(kept));
  PENSTOCK_TRY(stores->expect_one_step());
  const uint64_t step = stores->ranks().front()->payload().step;
  std::vector<engine::KeptTogether::Runs> runs;
  for (const auto& store : stores->ranks()) {
    PENSTOCK_TRY(store->check_durable_step(stores->memory(), ticking(session, "verify")));
    runs.push_back(store->runs_of_durable_step());
  }
  PENSTOCK_TRY_ASSIGN(bytes, kept.keep(step, runs));
  Answer answer;
  answer.json = {{"step", step}, {"bytes", bytes}, {"snapshots", snapshots_json(kept)}};
  answer.text = text("step ", step, " stays, in ", bytes_text(bytes), "\n");
  return answer;
}

Result<Answer> roll_back(Session& session, const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(stores, open_whole(flags.paths));
  if (!flags.step) return missing_step(*stores);
  const std::vector<std::string> folders = stores->folders();
  const uint64_t from = stores->ranks().front()->payload().step;
  engine::KeptTogether kept = stores->kept();
  stores.reset();
  const Status is_kept = kept.check(*flags.step);
  if (is_kept.ok()) {
    PENSTOCK_TRY(kept.restore(*flags.step, ticking(session, "roll back")));
  } else {
    PENSTOCK_TRY_ASSIGN(before, engine::whole_step_before(from, folders, ticking(session, "verify the step before")));
    if (before != *flags.step) return is_kept;
    PENSTOCK_TRY(engine::go_back_to_step_before(*before, folders));
  }
  Answer answer;
  answer.json = {{"step", *flags.step}, {"from", from}, {"snapshots", snapshots_json(kept)}};
  answer.text = text("the store is at step ", *flags.step, ", it was at ", from, "; the next run goes on from there\n");
  return answer;
}

Result<Answer> remove(const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(stores, open_whole(flags.paths));
  if (!flags.step) return missing_step(*stores);
  engine::KeptTogether kept = stores->kept();
  PENSTOCK_TRY(refuse_within_rollback(kept));
  PENSTOCK_TRY(kept.check(*flags.step));
  const uint64_t bytes = kept.bytes_of(*flags.step);
  PENSTOCK_TRY(kept.drop(*flags.step));
  Answer answer;
  answer.json = {{"step", *flags.step}, {"bytes", bytes}, {"snapshots", snapshots_json(kept)}};
  answer.text = text("the snapshot of step ", *flags.step, " is removed, ", bytes_text(bytes), " are free again\n");
  return answer;
}

void paths_of(Options& options, Flags& flags) {
  options.paths("PATH", flags.paths, 1,
                "The folders of the store, one on each drive, in any order; commas may join them");
}

}  // namespace

Json snapshots_json(const engine::KeptTogether& kept) {
  Json list = Json::array();
  for (const uint64_t step : kept.steps()) {
    list.push_back({{"step", step}, {"bytes", kept.bytes_of(step)}});
    const Json note = Json::parse(kept.note_of(step), nullptr, false);
    if (note.is_object() && note.contains("eval_loss")) list.back()["eval_loss"] = note["eval_loss"];
  }
  return list;
}

Verb checkpoint_snapshot_verb() {
  auto flags = std::make_shared<Flags>();
  return {"checkpoint snapshot",
          "Keep the newest step, whatever comes after",
          "Verifies what steps update and copies it into kept/STEP in each of the store's folders; of a run of several "
          "ranks "
          "into\nkept/rankN/STEP, and the step counts once all ranks have it. Frozen weights stay in the store alone. "
          "On XFS "
          "and btrfs the copy shares its blocks with the store, and takes space only as that changes.\n"
          "`penstock train --keep-every N` and `--keep-best N` do this while a run goes on.",
          {{"penstock checkpoint snapshot /mnt/nvme0/run", "The newest step of a store on one drive"}},
          [flags](Options& options) -> Action {
            paths_of(options, *flags);
            return [flags](Session& session) { return keep(session, *flags); };
          }};
}

Verb checkpoint_rollback_verb() {
  auto flags = std::make_shared<Flags>();
  return {"checkpoint rollback",
          "Make the store what it was at a step that was kept",
          "Writes the tiles that have changed since, or are damaged, beside those that are there, checks every one, "
          "and makes "
          "them the\n"
          "store's by one root: a crash leaves the one step or the other. Steps after it are lost, unless they were\n"
          "kept as well; the step that is gone back to stays kept. The stores of several ranks go back together, and\n"
          "what a crash leaves of that the next run ends. Where nothing has run since, the step before the newest is\n"
          "still in the store of one rank alone, and can be gone back to though it was not kept.",
          {{"penstock checkpoint rollback /mnt/nvme0/run --step 400", "Go on from step 400"}},
          [flags](Options& options) -> Action {
            paths_of(options, *flags);
            options.count("--step", flags->step,
                          "One that `penstock checkpoint ls` lists, or the step before the newest");
            return [flags](Session& session) { return roll_back(session, *flags); };
          }};
}

Verb checkpoint_rm_verb() {
  auto flags = std::make_shared<Flags>();
  return {"checkpoint rm",
          "Remove a step that was kept",
          "Removes one snapshot. The store itself is not touched.",
          {{"penstock checkpoint rm /mnt/nvme0/run --step 400", "Its space is free again"}},
          [flags](Options& options) -> Action {
            paths_of(options, *flags);
            options.count("--step", flags->step, "One that `penstock checkpoint ls` lists");
            return [flags](Session&) { return remove(*flags); };
          }};
}

}  // namespace penstock::tools
