#include "tools/penstock/update_common.h"

#include "aio/make_engine.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/store_flags.h"
#include "tools/system/interrupt.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kThreadsMax = 1024;
constexpr double kProbeSeconds = 0.4;  // for each point of the mix curve

}  // namespace

void update_options(Options& options, UpdateFlags& flags) {
  options.count("--params", flags.parameters, "Parameters of the model");
  options.count("--steps", flags.steps, "Run until this step");
  options.text("--store", flags.stores, "PATH[,PATH]", "Folders of the store, one on each drive; made where missing");
  options.text("--budget", flags.budget, "host=SIZE", "Host memory for everything, the program included");
  options.file(
      "--machine", flags.machine,
      "Profile that `penstock nvme probe` left, of the store's drives; else they are measured for some seconds");
  options.durability("--durability", flags.durability);
  options.choice("--space", flags.space, {"double", "single"},
                 "Slots a tile in a new store; single takes half the space, and a crash loses the store");
  options.share("--strike-share", flags.strike_share, "Share of the steps whose gradients are clipped");
  options.count("--tile", flags.tile_elements, "Parameters a tile, a multiple of 65536; 0: the planner chooses");
  options.count("--threads", flags.threads, "Threads that update; 0: one for each processor");
  options.count("--seed", flags.seed, "Seed of weights and gradients");
  engine_option(options, flags.engine);
  options.flag("--force", flags.force, "Replace a store that is there");
}

Result<std::unique_ptr<UpdateRun>> open_update_run(Session& session, const UpdateFlags& flags) {
  UpdateSettings settings;
  settings.parameters = flags.parameters;
  settings.seed = flags.seed;
  settings.folders = split(flags.stores, ',');
  settings.strike_share = flags.strike_share;
  // What made the steps that the store has; others would not be those that `penstock verify` makes again.
  settings.config_hash =
      text("--seed ", flags.seed, " --strike-share ", flags.strike_share, ", norms and biases without decay");
  if (flags.threads > kThreadsMax) {
    return Status(Code::kUsage, text("--threads: ", flags.threads), text("give at most ", kThreadsMax));
  }
  settings.threads = static_cast<uint32_t>(flags.threads);
  if (settings.folders.empty()) return Status(Code::kUsage, "--store: missing", "--store /mnt/nvme0/model");
  if (flags.parameters == 0 || flags.parameters > 1'000'000'000'000) {
    return Status(Code::kUsage, text("--params: ", flags.parameters), "give between 1 and 1000B");
  }
  if (flags.tile_elements % kBlockElements != 0) {
    return Status(Code::kUsage, text("--tile: ", flags.tile_elements), "a tile has a multiple of 65536 parameters");
  }
  if (flags.tile_elements > 0) settings.choices.tile_elements = flags.tile_elements;
  PENSTOCK_TRY_ASSIGN(host_bytes, host_budget(flags.budget));
  settings.host_bytes = host_bytes;
  settings.durability = flags.durability;
  if (flags.space == "single") settings.slots = 1;
  PENSTOCK_TRY_ASSIGN(io, aio::parse_engine_choice(flags.engine));
  settings.io = io;
  MadeFolders made;
  for (const std::string& folder : settings.folders) PENSTOCK_TRY(made.make(folder));
  PENSTOCK_TRY(refuse_twins("--store", settings.folders));
  const MeasureOptions options{.seconds = kProbeSeconds,
                               .memory_bytes = settings.host_bytes / 2,
                               .threads = settings.threads,
                               .engine = settings.io};
  PENSTOCK_TRY_ASSIGN(machine, machine_of(session, flags.machine, settings.folders, options));
  settings.machine = machine;

  auto run = std::make_unique<UpdateRun>(settings);
  if (flags.force || !has_store(settings.folders)) {
    session.progress.note(text("making a store of ", flags.parameters, " parameters"));
    PENSTOCK_TRY(run->create(flags.force ? aio::CreateOptions::Existing::replace : aio::CreateOptions::Existing::refuse,
                             ticking(session, "make the store")));
  }
  PENSTOCK_TRY(run->open(ticking(session, "a root is in doubt: read every block")));
  for (const std::string& remark : run->engine().remarks()) session.progress.note("store: " + remark);
  if (run->engine().steps_done() > 0) {
    session.progress.note(text("resuming after step ", run->engine().steps_done()));
  }
  if (!run->engine().survives_crashes())
    session.progress.note("one slot a tile: a crash within a step loses the store");
  const Durability& durability = run->engine().plan().durability;
  if (!flags.durability && durability.kind != Durability::Kind::step) {
    session.progress.note(text("durable after every ", durability.steps,
                               " steps: writing through what rests in host memory costs at most 3 % so"));
  }
  return run;
}

Result<std::vector<engine::StepReport>> run_steps(Session& session, UpdateRun& run, uint64_t until) {
  std::vector<engine::StepReport> reports;
  while (run.engine().steps_done() < until) {
    if (!check_interrupted().ok()) {
      PENSTOCK_TRY(run.engine().settle());
      return Status(Code::kInterrupted,
                    text("interrupted: on request: step ", run.engine().steps_done(), " is committed"),
                    "run it again to go on from there");
    }
    PENSTOCK_TRY_ASSIGN(report, run.step());
    reports.push_back(report);
    session.progress.update(static_cast<double>(report.step) / static_cast<double>(until), text("step ", report.step));
  }
  PENSTOCK_TRY(run.engine().settle());
  return reports;
}

}  // namespace penstock::tools
