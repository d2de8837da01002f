#include "tools/train/run_start.h"

#include <algorithm>

#include "aio/make_engine.h"
#include "runtime/engine/ranks/rank_agreement.h"
#include "tools/penstock/update_common.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr double kProbeSeconds = 0.4;  // for each point of the mix curve
constexpr double kLateAtMostS = 600;   // that a rank is waited for, whatever it does

void divide_among(uint32_t ranks, MachineProfile& machine) {
  for (DriveRates& drive : machine.drives) {
    drive.burst = drive.burst.scaled(1.0 / ranks);
    if (drive.sustained) drive.sustained = drive.sustained->scaled(1.0 / ranks);
  }
}

// Which of the ranks this is. Who is to start them has done so: here they are, or there is but one.
Result<engine::RankPlace> place_of(const TrainFlags& flags) {
  PENSTOCK_TRY_ASSIGN(place, engine::find_rank_place());
  if (flags.ranks && *flags.ranks != place.ranks) {
    return Status(Code::kUsage, text("--ranks: ", *flags.ranks, ", where ", place.ranks, " were started"),
                  "leave --ranks out where torchrun or Slurm starts them");
  }
  return place;
}

}  // namespace

Result<std::unique_ptr<engine::Ranks>> meet_others(const TrainingSettings& settings, uint64_t memory_bytes,
                                                   std::chrono::milliseconds within) {
  if (settings.place.ranks == 1) return std::unique_ptr<engine::Ranks>();
  engine::RanksOptions options{.place = settings.place, .memory_bytes = memory_bytes, .meets_within = within};
  options.silent_at_most = options.hangs_after =
      std::chrono::milliseconds(static_cast<int64_t>(std::min(settings.config.hangs_after_s, kLateAtMostS) * 1000));
  return engine::meet(options);
}

uint64_t shared_bytes_of(const TrainingSettings& settings) {
  return engine::RankedEngine::memory_of(settings.ranked(), settings.place.ranks).shared_bytes();
}

Status agreed(engine::Ranks* ranks, const Status& mine) {
  return ranks == nullptr ? mine : engine::agree_on(*ranks, mine);
}

Result<Prepared> prepare(const TrainFlags& flags) {
  std::vector<std::string> folders = split(flags.stores.value_or(""), ',');
  if (flags.config) {
    PENSTOCK_TRY_ASSIGN(config, config_of(flags, std::nullopt));
    folders = config.stores;
  }
  if (folders.empty()) return Status(Code::kUsage, "--store: missing", "--store /mnt/nvme0/model");
  PENSTOCK_TRY_ASSIGN(place, place_of(flags));
  std::optional<trainer::TrainerState> stored;
  if (!flags.force) {
    PENSTOCK_TRY_ASSIGN(found, stored_state(folders, place));
    stored = std::move(found);
  }
  PENSTOCK_TRY_ASSIGN(config, config_of(flags, stored));
  PENSTOCK_TRY_ASSIGN(settings, settings_of(config, stored, place));
  return Prepared{std::move(settings), std::move(stored)};
}

Status measure(Session& session, TrainingSettings& settings, engine::Ranks* ranks) {
  const MeasureOptions options{.seconds = kProbeSeconds,
                               .memory_bytes = settings.engine.request.budgets.host_bytes / 2,
                               .threads = settings.engine.update_threads,
                               .engine = aio::parse_engine_choice(settings.config.io_engine).value()};
  const std::vector<std::string> folders = folders_of_rank(settings.config.stores, settings.place);
  const bool shares_drives = settings.place.ranks > 1 && folders == settings.config.stores;
  auto measured = [&]() -> Status {
    PENSTOCK_TRY_ASSIGN(machine, machine_of(session, settings.config.machine, folders, options));
    if (shares_drives) divide_among(settings.place.ranks, machine);
    compute_on(machine, settings);
    return Status();
  };
  // One after another, where they would measure one another.
  const uint32_t turns = shares_drives && settings.config.machine.empty() ? settings.place.ranks : 1;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const bool is_mine = turns == 1 || turn == settings.place.rank;
    PENSTOCK_TRY(agreed(ranks, is_mine ? measured() : Status()));
  }
  session.progress.note(
      text(parameters_text(settings.model), "; measuring a step of ", settings.tokens_of_step(), " tokens"));
  return agreed(ranks, measure_step(settings));
}

}  // namespace penstock::tools
