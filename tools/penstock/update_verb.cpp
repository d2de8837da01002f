#include <algorithm>
#include <chrono>
#include <memory>

#include "aio/resident_memory.h"
#include "tools/nvme/statistics.h"
#include "tools/penstock/command.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/step_json.h"
#include "tools/penstock/text_table.h"
#include "tools/penstock/update_common.h"

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

Result<Answer> update(Session& session, const UpdateFlags& flags) {
  PENSTOCK_TRY_ASSIGN(run, open_update_run(session, flags));
  const std::string description = run->engine().description();
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t first = run->engine().steps_done();
  const bool measured = !run->options().request.machine.striped().empty();
  const double parameters = static_cast<double>(flags.parameters);
  const RunningTable table({"step", "gradients", "norm", "seconds", "predicted", "read B/param", "written B/param"});
  session.print("budget\n" + description + "\n");
  std::vector<engine::StepReport> reports;
  const Status verdict = run_steps(session, *run, flags.steps, [&](const engine::StepReport& report) {
    if (reports.empty()) session.print(text("steps ", first + 1, " to ", flags.steps, "\n", table.heads()));
    session.print(table.row(cells_of(report, parameters, measured)));
    session.progress.step(json_of(report).dump());
    reports.push_back(report);
  });
  if (reports.empty() && !verdict.ok()) return verdict;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double steps = std::max<double>(1, static_cast<double>(reports.size()));

  const engine::DriveBytes by_drives = run->engine().drive_bytes();
  const auto read = static_cast<double>(by_drives.read_bytes), written = static_cast<double>(by_drives.written_bytes);
  const double moved = read + written;
  const double floor_s = drive_floor_s(run->options().request.machine, by_drives, steps).value_or(0);
  const Plan& plan = run->engine().plan();

  Answer answer;
  answer.json = {
      {"parameters", flags.parameters},
      {"steps", run->engine().steps_done()},
      {"durability", text_of(plan.durability)},
      {"remarks", run->engine().remarks()},
      {"step_s", seconds / steps},
      {"predicted_s", predicted_json(run->engine().predicted_step_s())},
      {"floor_s", measured ? Json(floor_s) : Json()},
      {"bytes_per_parameter", {{"read", read / steps / parameters}, {"written", written / steps / parameters}}},
      {"planned_bytes_per_parameter",
       {{"read", static_cast<double>(plan.read_bytes()) / parameters},
        {"written", plan.mean_written_bytes(plan.durability) / parameters}}},
      {"rss_bytes", aio::resident_bytes_peak()},
      {"budget_bytes", run->options().request.budgets.host_bytes}};
  Json log = Json::array();
  for (const engine::StepReport& report : reports) log.push_back(json_of(report));
  answer.json["log"] = log;
  answer.verdict = verdict;
  if (reports.empty()) {
    answer.text = text("nothing to do: the store is at step ", first, " already\n");
    return answer;
  }
  const std::string against =
      measured ? text("predicted ", fixed(run->engine().predicted_step_s(), 3), " s; the drives alone would take ",
                      fixed(floor_s, 3), " s for its ", fixed(moved / steps / 1e9, 2), " GB, ",
                      fixed(100 * floor_s / (seconds / steps), 0), " % of the step")
               : text("not predicted: the drives were not measured; it moves ", fixed(moved / steps / 1e9, 2), " GB");
  answer.text = text("\n", fixed(seconds / steps, 3), " s a step, with the writes that end after the last one; ",
                     against, "\npeak memory ", bytes_text(aio::resident_bytes_peak()), " of ",
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
          "crash, it continues from its last committed step.",
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
