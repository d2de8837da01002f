#include "tools/train/run_start.h"

#include "aio/make_engine.h"
#include "tools/penstock/update_common.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr double kProbeSeconds = 0.4;  // for each point of the mix curve

}  // namespace

Result<Prepared> prepare(const TrainFlags& flags) {
  std::vector<std::string> folders = split(flags.stores.value_or(""), ',');
  if (flags.config) {
    PENSTOCK_TRY_ASSIGN(config, config_of(flags, std::nullopt));
    folders = config.stores;
  }
  if (folders.empty()) return Status(Code::kUsage, "--store: missing", "--store /mnt/nvme0/model");
  std::optional<trainer::TrainerState> stored;
  if (!flags.force) {
    PENSTOCK_TRY_ASSIGN(found, stored_state(folders));
    stored = std::move(found);
  }
  PENSTOCK_TRY_ASSIGN(config, config_of(flags, stored));
  PENSTOCK_TRY_ASSIGN(settings, settings_of(config, stored));
  return Prepared{std::move(settings), std::move(stored)};
}

Status measure(Session& session, TrainingSettings& settings) {
  const MeasureOptions options{.seconds = kProbeSeconds,
                               .memory_bytes = settings.engine.request.budgets.host_bytes / 2,
                               .threads = settings.config.threads,
                               .engine = aio::parse_engine_choice(settings.config.io_engine).value()};
  PENSTOCK_TRY_ASSIGN(machine, machine_of(session, settings.config.machine, settings.config.stores, options));
  compute_on(machine, settings);
  session.progress.note(
      text(parameters_text(settings.model), "; measuring a step of ", settings.tokens_of_step(), " tokens"));
  return measure_step(settings);
}

}  // namespace penstock::tools
