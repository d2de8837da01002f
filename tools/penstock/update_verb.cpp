#include <algorithm>
#include <chrono>
#include <memory>

#include "aio/resident_memory.h"
#include "runtime/engine/seconds_since.h"
#include "tools/nvme/statistics.h"
#include "tools/penstock/command.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/step_json.h"
#include "tools/penstock/text_table.h"
#include "tools/penstock/update_common.h"
#include "tools/penstock/update_exit.h"

namespace penstock::tools {
namespace {

const char* name_of(Verdict verdict) {
  return verdict == Verdict::confirm ? "confirmed" : verdict == Verdict::strike ? "clipped" : "skipped";
}

Json json_of(const engine::StepReport& report) {
  return {{"step", report.step},
          {"grad_norm", report.gradient_norm},
          {"verdict", name_of(report.verdict)},
          {"step_s", report.wall_s},
          {"predicted_s", predicted_json(report.predicted_s)},
          {"trainer_s", report.trainer_s},
          {"intake_s", report.intake_s},
          {"nvme_read_bytes", report.read_bytes},
          {"nvme_written_bytes", report.written_bytes},
          {"stall_s", stalls_json(report)},
          {"skipped", report.verdict == Verdict::skip}};
}

std::vector<std::string> cells_of(const engine::StepReport& report, double parameters, bool measured) {
  return {text(report.step),
          name_of(report.verdict),
          fixed(report.gradient_norm, 3),
          fixed(report.wall_s, 3),
          measured ? fixed(report.predicted_s, 3) : "-",
          fixed(static_cast<double>(report.read_bytes) / parameters, 2),
          fixed(static_cast<double>(report.written_bytes) / parameters, 2)};
}

using Clock = std::chrono::steady_clock;
using engine::seconds_since;

// Steps as they ran, the writes that ended after the last one included.
struct Steps {
  uint64_t first = 0;  // done before
  std::vector<engine::StepReport> reports;
  double seconds = 0;
  double tail_s = 0;  // of these, after the last step
  Status verdict;

  double count() const { return std::max<double>(1, static_cast<double>(reports.size())); }
  double step_s() const { return seconds / count(); }
};

Steps run_and_print(Session& session, UpdateRun& run, const UpdateFlags& flags) {
  Steps steps;
  steps.first = run.engine().steps_done();
  const bool measured = !run.options().request.machine.striped().empty();
  const double parameters = static_cast<double>(run.model().parameters());
  const RunningTable table({"step", "gradients", "norm", "seconds", "predicted", "read B/param", "written B/param"});
  const auto begin = Clock::now();
  auto last_end = begin;
  steps.verdict = run_steps(session, run, flags.steps, [&](const engine::StepReport& report) {
    last_end = Clock::now();
    if (steps.reports.empty()) session.print(text("steps ", steps.first + 1, " to ", flags.steps, "\n", table.heads()));
    session.print(table.row(cells_of(report, parameters, measured)));
    session.progress.step(json_of(report).dump());
    steps.reports.push_back(report);
  });
  steps.seconds = seconds_since(begin);
  steps.tail_s = seconds_since(last_end);
  return steps;
}

// The mean step's time, the share of the commit at exit included; 0: not measured.
double predicted_step_s(const engine::Engine& engine, const ExitShare& exit) {
  return engine.predicted_step_s() > 0 ? engine.predicted_step_s() + exit.predicted_step_s() : 0;
}

Result<Answer> update(Session& session, const UpdateFlags& flags) {
  PENSTOCK_TRY_ASSIGN(run, open_update_run(session, flags));
  const engine::Engine& engine = run->engine();
  const uint64_t ahead = flags.steps - std::min(flags.steps, engine.steps_done());
  session.print(text("budget\n", engine.description(), ExitShare(engine, ahead, flags.steps).predicted_text(), "\n"));
  const Steps steps = run_and_print(session, *run, flags);
  if (steps.reports.empty() && !steps.verdict.ok()) return steps.verdict;

  const bool measured = !run->options().request.machine.striped().empty();
  const double parameters = static_cast<double>(run->model().parameters());
  const ExitShare exit(engine, steps.reports.size(), engine.steps_done());
  const double predicted_s = predicted_step_s(engine, exit);
  const engine::DriveBytes by_drives = engine.drive_bytes();
  const auto read = static_cast<double>(by_drives.read_bytes), written = static_cast<double>(by_drives.written_bytes);
  const double floor_s = drive_floor_s(run->options().request.machine, by_drives, steps.count()).value_or(0);
  const Plan& plan = engine.plan();

  Answer answer;
  answer.json = {{"parameters", run->model().parameters()},
                 {"steps", engine.steps_done()},
                 {"durability", text_of(plan.durability)},
                 {"remarks", engine.remarks()},
                 {"step_s", steps.step_s()},
                 {"predicted_s", predicted_json(predicted_s)},
                 {"floor_s", measured ? Json(floor_s) : Json()},
                 {"commit_at_exit", exit.json(steps.tail_s)},
                 {"bytes_per_parameter",
                  {{"read", read / steps.count() / parameters}, {"written", written / steps.count() / parameters}}},
                 {"planned_bytes_per_parameter",
                  {{"read", static_cast<double>(plan.read_bytes()) / parameters},
                   {"written", plan.mean_written_bytes(plan.durability) / parameters}}},
                 {"rss_bytes", aio::resident_bytes_peak()},
                 {"budget_bytes", run->options().request.budgets.host_bytes}};
  Json log = Json::array();
  for (const engine::StepReport& report : steps.reports) log.push_back(json_of(report));
  answer.json["log"] = log;
  answer.verdict = steps.verdict;
  if (steps.reports.empty()) {
    answer.text = text("nothing to do: the store is at step ", steps.first, " already\n");
    return answer;
  }
  const std::string moved = fixed((read + written) / steps.count() / 1e9, 2) + " GB";
  const std::string against =
      measured ? text("predicted ", fixed(predicted_s, 3), " s; the drives alone would take ", fixed(floor_s, 3),
                      " s for its ", moved, ", ", fixed(100 * floor_s / steps.step_s(), 0), " % of the step")
               : "not predicted: the drives were not measured; it moves " + moved;
  answer.text =
      text("\n", fixed(steps.step_s(), 3), " s a step, with the writes that end after the last one; ", against, "\n",
           exit.taken_text(steps.tail_s), "peak memory ", bytes_text(aio::resident_bytes_peak()), " of ",
           bytes_text(run->options().request.budgets.host_bytes), "\n");
  return answer;
}

}  // namespace

Verb update_verb() {
  auto flags = std::make_shared<UpdateFlags>();
  return {"update",
          "Run optimizer steps over a synthetic model with its state on drives",
          "Moves, updates and commits every byte of weights, masters and moments as training does, with made-up\n"
          "gradients instead of a model. Prints one line as each step ends. Started again after an interrupt or a\n"
          "crash, it continues from its last committed step.\n\n"
          "Where the last step is not durable (--durability exit, or every:N between two durable ones), what rests in\n"
          "host memory is written once after it: the commit at exit. Its bytes and seconds are predicted before the\n"
          "first step. A row's time does not include it; the time a step, and what is predicted of that, do.",
          {{"penstock update --params 250M --store /mnt/nvme0/demo --budget host=256MiB", "Six steps"},
           {"penstock update --params 1B --store /mnt/nvme0/demo,/mnt/nvme1/demo --budget host=4GiB --steps 20",
            "Over two drives, with what memory holds kept in memory"},
           {"penstock update --store /mnt/nvme0/demo --machine ~/.config/penstock/profile.json",
            "Without measuring, after `penstock nvme probe /mnt/nvme0`"}},
          [flags](Options& options) -> Action {
            update_options(options, *flags);
            return [flags](Session& session) { return update(session, *flags); };
          }};
}

}  // namespace penstock::tools
