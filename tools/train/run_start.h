// What `train` and `verify` begin with: a run as its flags ask for it, made ready and measured.
#pragma once

#include <chrono>
#include <memory>
#include "runtime/trainer/torch/training_run.h"

#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/train_flags.h"
#include "tools/train/settings_of_run.h"

namespace penstock::tools {

// A run as its flags ask for it, and what its store has of it.
struct Prepared {
  TrainingSettings settings;
  std::optional<trainer::TrainerState> stored;
  bool replaces = false;    // what stores there are, by --force
  bool makes_anew = false;  // their making was cut short
};

// A rank that cannot be made ready tells those on other hosts, who would wait for it.
enum class Data { is_learnt, is_any };  // any: steps of it are compared, or only planned
Result<Prepared> prepare(Session& session, const TrainFlags& flags, Data data);

// Other hosts' launchers do not see that this rank ends, so it says why where they wait for it.
void tell_others(const engine::RankPlace& place, const Status& why);

// What a rank shares with the others: of host memory, and of its device's.
struct SharedBytes {
  uint64_t host = 0, device = 0, staging = 0;  // the last, besides, for what comes from others to be added up
};
SharedBytes shared_bytes_of(const TrainingSettings& settings);

// Waits for the other ranks, and refuses what one of them could not be made ready for; nothing where there are none.
Result<std::unique_ptr<engine::Ranks>> meet_others(
    Session& session, const TrainingSettings& settings, const SharedBytes& shared,
    std::chrono::milliseconds within = engine::RanksOptions().meets_within);

// Refused where a rank would train something else than the others, or has no store where others have one; says where
// all are to be made anew. Which step the stores have in common is found when they are opened.
Status expect_one_run(engine::Ranks* ranks, Prepared& prepared);

// The refusal of this rank, else of the first that has one.
Status agreed(engine::Ranks* ranks, const Status& mine);

// Where stores are corrupt and one of their steps is kept, that is the way back.
Status with_way_back(const Status& status, const TrainingSettings& settings);

// Fills in the rates of the store's drives, and what a step takes beside the plan.
Status measure(Session& session, TrainingSettings& settings, engine::Ranks* ranks = nullptr);

// The verb `verify`, of a training run.
Verb verify_training_verb();

}  // namespace penstock::tools
