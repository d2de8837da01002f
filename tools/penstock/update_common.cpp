#include "tools/penstock/update_common.h"

#include <functional>

#include "aio/make_io_engine.h"
#include "cpu_optim/update_workers.h"
#include "tools/penstock/checkpoint_common.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/store_flags.h"
#include "tools/plan/least_plan.h"
#include "tools/system/interrupt.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr uint32_t kThreadsMax = cpu_optim::UpdateWorkersOptions::kThreadsMax;
constexpr double kProbeSeconds = 0.4;  // for each point of the mix curve

}  // namespace

void update_options(Options& options, UpdateFlags& flags) {
  options.count("--params", flags.parameters, "Parameters of the model; default: those of the store, else 250M");
  options.count("--steps", flags.steps, "Last step to run");
  options.text("--store", flags.stores, "PATH[,PATH]", "Folders of the store, one on each drive; created if missing");
  options.text("--budget", flags.budget, "host=SIZE", "Host memory for everything, including the program");
  options.file(
      "--machine", flags.machine,
      "Profile of the store's drives, written by `penstock nvme probe`; default: measure them for some seconds");
  options.durability("--durability", flags.durability);
  options.choice(
      "--space", flags.space, {"double", "single"},
      "Slots for each tile of a new store; single halves the space, but a crash during a step loses the store");
  options.share("--strike-share", flags.strike_share, "Share of the steps whose gradients are clipped");
  options.count("--tile", flags.tile_elements, "Parameters in a tile, a multiple of 65536; 0: the planner chooses");
  options.count("--threads", flags.threads, "Update threads; 0: one for each processor");
  options.count("--seed", flags.seed, "Seed of weights and gradients");
  engine_option(options, flags.engine);
  options.flag("--force", flags.force, "Replace an existing store");
}

// The engine refuses the first thing that has no room. This asks for all of it at once, so that the advice suffices.
Status with_whole_need(const Status& refused, const UpdateRun& run) {
  if (refused.code() != Code::kDoesNotFit) return refused;
  const PlanRequest& request = run.options().request;
  const Result<std::vector<BudgetLine>> least = least_plan(request);
  if (!least.ok()) return refused;
  const uint64_t needed = needed_bytes(*least, Tier::host);
  if (needed <= request.budgets.host_bytes) return refused;
  // The program itself grows while it creates the store: by some KiB, or by 2 MiB when its threads run at once.
  constexpr uint64_t kGrowthMib = 4;
  const uint64_t enough_mib = ceil_div(needed, kMiB) + kGrowthMib;
  return Status(Code::kDoesNotFit,
                text("--budget: ", run.model().parameters(), " parameters need at least ", enough_mib,
                     " MiB of host memory, host=", bytes_flag_text(request.budgets.host_bytes), " given"),
                text("--budget host=", enough_mib, "MiB"));
}

Result<uint64_t> parameters_of_run(Session& session, const UpdateFlags& flags) {
  const std::vector<std::string> folders = split(flags.stores, ',');
  const uint64_t asked = flags.parameters.value_or(UpdateFlags::kParametersUsual);
  PENSTOCK_TRY(wait_while_taken(session, folders));
  if (flags.force || folders.empty()) return asked;
  PENSTOCK_TRY_ASSIGN(found, find_store(folders));
  if (found.kind != aio::StorePresence::Kind::there) return asked;
  PENSTOCK_TRY_ASSIGN(stores, InspectedStores::open(folders));
  if (!stores->ranks().front()->payload().trainer_state.empty()) {
    return Status(Code::kUsage, text("--store: ", flags.stores, ": has a trainer's run, not one of `penstock update`"),
                  "`penstock train` and `penstock verify CONFIG` for that run; another --store for this one");
  }
  uint64_t stored = 0;
  for (const auto& rank : stores->ranks()) stored += rank->shape().parameter_elements();
  if (!flags.parameters || *flags.parameters == stored) return stored;
  return Status(Code::kUsage, text("--params: ", *flags.parameters, ": the store has ", stored, " parameters"),
                text("--params ", stored, ", another --store, or --force to replace this one"));
}

Result<std::unique_ptr<UpdateRun>> open_update_run(Session& session, const UpdateFlags& flags) {
  UpdateSettings settings;
  settings.seed = flags.seed;
  settings.folders = split(flags.stores, ',');
  settings.strike_share = flags.strike_share;
  // What made the steps that the store has; others would not be those that `penstock verify` makes again.
  settings.config_hash =
      text("--seed ", flags.seed, " --strike-share ", flags.strike_share, ", norms and biases without decay");
  if (flags.threads > kThreadsMax) {
    return Status(Code::kUsage, text("--threads: ", flags.threads, ": at most ", kThreadsMax, " expected"),
                  "leave --threads out: one for each processor");
  }
  settings.threads = static_cast<uint32_t>(flags.threads);
  if (settings.folders.empty()) return Status(Code::kUsage, "--store: missing", "--store /mnt/nvme0/model");
  if (flags.parameters && (*flags.parameters == 0 || *flags.parameters > 1'000'000'000'000))
    return Status(Code::kUsage, text("--params: ", *flags.parameters, ": 1 to 1000B expected"), "--params 250M");
  if (flags.tile_elements % kBlockElements != 0) {
    return Status(Code::kUsage, text("--tile: ", flags.tile_elements, ": a multiple of 65536 expected"),
                  "leave --tile out: the planner chooses");
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
  PENSTOCK_TRY(refuse_repeated_folders("--store", settings.folders));
  PENSTOCK_TRY_ASSIGN(parameters, parameters_of_run(session, flags));
  settings.parameters = parameters;
  const MeasureOptions options{.seconds = kProbeSeconds,
                               .memory_bytes = settings.host_bytes / 2,
                               .threads = settings.threads,
                               .engine = settings.io};
  PENSTOCK_TRY_ASSIGN(machine, machine_of(session, flags.machine, settings.folders, options));
  settings.machine = machine;

  auto run = std::make_unique<UpdateRun>(settings);
  PENSTOCK_TRY_ASSIGN(found, find_store(settings.folders));
  if (flags.force || found.kind != aio::StorePresence::Kind::there) {
    session.progress.note(text("creating a store of ", counted(settings.parameters, "parameter")));
    const Status created =
        run->create(flags.force ? aio::CreateOptions::Existing::replace : aio::CreateOptions::Existing::refuse,
                    ticking(session, "create the store"));
    if (!created.ok()) return with_whole_need(created, *run);
  }
  const Status opened = run->open(ticking(session, "a root record is damaged: verifying every block"));
  if (!opened.ok()) return with_whole_need(opened, *run);
  for (const std::string& remark : run->engine().remarks()) session.progress.note("store: " + remark);
  if (run->engine().steps_done() > 0) {
    session.progress.note(text("resuming after step ", run->engine().steps_done()));
  }
  if (!run->engine().survives_crashes())
    session.progress.note("one slot a tile: a crash during a step loses the store");
  const Durability& durability = run->engine().plan().durability;
  if (!flags.durability && durability.kind != Durability::Kind::step) {
    session.progress.note(text("durable every ", durability.steps,
                               " steps, so that writing out what rests in host memory takes at most 3 % of the time"));
  }
  return run;
}

Status run_steps(Session& session, UpdateRun& run, uint64_t until,
                 const std::function<void(const engine::StepReport&)>& each) {
  while (run.engine().steps_done() < until) {
    if (!check_interrupted().ok()) {
      PENSTOCK_TRY(run.engine().settle());
      return Status(Code::kInterrupted, text("interrupted: step ", run.engine().steps_done(), " is committed"),
                    "the same command continues from there");
    }
    PENSTOCK_TRY_ASSIGN(report, run.step());
    if (each) each(report);
    session.progress.update(static_cast<double>(report.step) / static_cast<double>(until), text("step ", report.step));
  }
  return run.engine().settle();
}

}  // namespace penstock::tools
