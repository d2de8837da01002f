// penstock-trainer: the part of the command that stands on LibTorch. `penstock train` starts it.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "aio/make_engine.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/step_json.h"
#include "tools/penstock/store_flags.h"
#include "tools/penstock/train_flags.h"
#include "tools/system/interrupt.h"
#include "tools/system/words.h"
#include "tools/train/training_run.h"
#include "tools/update/update_run.h"

namespace penstock::tools {
namespace {

constexpr double kProbeSeconds = 0.4;  // for each point of the mix curve
constexpr const char* kSmallGpt =
    R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 256, "n_layer": 6, "n_head": 8, "vocab_size": 257,
        "n_positions": 1024, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})";

Result<std::string> read_whole(const std::string& flag, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_status(text(flag, ": ", path), errno, "a file that may be read");
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

Result<trainer::Samples> samples_of(const TrainFlags& flags, uint32_t vocabulary) {
  const std::string path = flags.data.empty() ? PENSTOCK_SHIPPED_TEXT : flags.data;
  PENSTOCK_TRY_ASSIGN(file, trainer::TokenFile::open(path));
  PENSTOCK_TRY(file->check(vocabulary));
  std::vector<trainer::DataSet> sets;
  sets.push_back({std::move(file)});
  return trainer::Samples::make(std::move(sets), {.length = flags.sequence, .seed = flags.seed});
}

Result<TrainingSettings> settings_of(Session& session, const TrainFlags& flags, MadeFolders& made) {
  if (flags.sequence == 0 || flags.sequences == 0 || flags.micro_batches == 0 || flags.micro_batches > 65536) {
    return Status(Code::kUsage,
                  text("--seq ", flags.sequence, ", --sequences ", flags.sequences, ", --micro-batches ",
                       flags.micro_batches, ": a step without tokens, or more micro-batches than a plan has"),
                  "give at least one of each, and at most 65536 micro-batches");
  }
  std::string config = kSmallGpt;
  if (!flags.model.empty()) {
    PENSTOCK_TRY_ASSIGN(given, read_whole("--model", flags.model));
    config = std::move(given);
  }
  PENSTOCK_TRY_ASSIGN(parsed, trainer::parse_model_config(config));
  PENSTOCK_TRY_ASSIGN(samples, samples_of(flags, parsed.vocab));
  TrainingSettings settings{
      .model = trainer::make_model(parsed, Dtype::bf16), .samples = std::move(samples), .schedule = {}, .engine = {}};
  settings.sequence = flags.sequence;
  settings.sequences = flags.sequences;
  settings.micro_batches = flags.micro_batches;
  settings.learning_rate = flags.learning_rate;
  settings.weight_decay = flags.weight_decay;
  settings.schedule.kind = flags.schedule == "cosine"   ? trainer::ScheduleKind::cosine
                           : flags.schedule == "linear" ? trainer::ScheduleKind::linear
                                                        : trainer::ScheduleKind::constant;
  settings.schedule.warmup_steps = flags.warm_up;
  settings.schedule.total_steps = flags.steps;
  settings.schedule.end_ratio = 0.1;
  PENSTOCK_TRY(validate(settings.schedule));
  settings.seed = flags.seed;
  settings.activations = flags.activations == "keep" ? ActivationChoice::keep : ActivationChoice::recompute;

  PlanRequest& request = settings.engine.request;
  PENSTOCK_TRY_ASSIGN(host_bytes, host_budget(flags.budget));
  request.budgets.host_bytes = host_bytes;
  request.durability = flags.durability;
  request.workload.clipping.norm = flags.clip;
  if (flags.group > 0) {
    request.choices.micro_batch_group = static_cast<uint32_t>(std::min(flags.group, flags.micro_batches));
  }
  const std::vector<std::string> folders = split(flags.stores, ',');
  if (folders.empty()) return Status(Code::kUsage, "--store: missing", "--store /mnt/nvme0/model");
  for (const std::string& folder : folders) PENSTOCK_TRY(made.make(folder));
  PENSTOCK_TRY(refuse_twins("--store", folders));
  PENSTOCK_TRY_ASSIGN(io, aio::parse_engine_choice(flags.engine));
  settings.engine.drives = engine::direct_drives(folders, io);
  settings.engine.update_threads = static_cast<uint32_t>(flags.threads);
  settings.engine.seed = flags.seed;
  settings.engine.config_hash = text("--seed ", flags.seed, " --seq ", flags.sequence, " --sequences ", flags.sequences,
                                     " --micro-batches ", flags.micro_batches);
  const MeasureOptions measure{.seconds = kProbeSeconds,
                               .memory_bytes = host_bytes / 2,
                               .threads = settings.engine.update_threads,
                               .engine = io};
  PENSTOCK_TRY_ASSIGN(machine, machine_of(session, flags.machine, folders, measure));
  request.machine = machine;
  return settings;
}

class Log {
 public:
  static Result<Log> open(const std::string& folder) {
    Log log;
    if (folder.empty()) return Result<Log>(std::move(log));
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    log.file_.open(folder + "/log.jsonl", std::ios::app);
    if (!log.file_)
      return errno_status(text("--run: ", folder, "/log.jsonl"), errno, "a folder that may be written to");
    return Result<Log>(std::move(log));
  }
  void add(const Json& line) {
    if (file_.is_open()) file_ << line.dump() << std::endl;
  }

 private:
  std::ofstream file_;
};

Json json_of(const TrainingRun::Step& step, double tokens) {
  const engine::StepReport& report = step.report;
  return {{"step", report.step},
          {"loss", step.loss},
          {"lr", step.learning_rate},
          {"grad_norm", report.gradient_norm},
          {"step_s", report.wall_s},
          {"predicted_s", predicted_json(report.predicted_s)},
          {"tokens_per_s", tokens / report.wall_s},
          {"nvme_read_bytes", report.read_bytes},
          {"nvme_written_bytes", report.written_bytes},
          {"stall_s", stalls_json(report)},
          {"rss_bytes", resident_bytes()},
          {"skipped", report.verdict == Verdict::skip}};
}

Result<Answer> train(Session& session, const TrainFlags& flags) {
  MadeFolders made;
  PENSTOCK_TRY_ASSIGN(settings, settings_of(session, flags, made));
  session.progress.note(
      text(settings.model.parameters(), " parameters; measuring a step of ", settings.tokens_of_step(), " tokens"));
  PENSTOCK_TRY(measure_step(settings));
  const std::vector<std::string> folders = split(flags.stores, ',');
  if (flags.force || !has_store(folders)) {
    PENSTOCK_TRY(TrainingRun::create(
        settings, flags.force ? aio::CreateOptions::Existing::replace : aio::CreateOptions::Existing::refuse,
        ticking(session, "make the store")));
  }
  PENSTOCK_TRY_ASSIGN(run, TrainingRun::open(settings));
  PENSTOCK_TRY_ASSIGN(log, Log::open(flags.run));
  for (const std::string& remark : run->engine().remarks()) session.progress.note("store: " + remark);
  const uint64_t first = run->engine().steps_done();
  if (first > 0) session.progress.note(text("resuming after step ", first));

  const auto begin = std::chrono::steady_clock::now();
  const auto tokens = static_cast<double>(settings.tokens_of_step());
  double loss_first = 0, loss_last = 0;
  while (run->engine().steps_done() < flags.steps) {
    if (!check_interrupted().ok()) {
      PENSTOCK_TRY(run->engine().settle());
      return Status(Code::kInterrupted,
                    text("interrupted: on request: step ", run->engine().steps_done(), " is committed"),
                    "run it again to go on from there");
    }
    PENSTOCK_TRY_ASSIGN(step, run->step());
    if (step.report.step == first + 1) loss_first = step.loss;
    loss_last = step.loss;
    log.add(json_of(step, tokens));
    session.progress.update(static_cast<double>(step.report.step) / static_cast<double>(flags.steps),
                            text("step ", step.report.step, ", loss ", fixed(step.loss, 3), ", ",
                                 fixed(tokens / step.report.wall_s, 0), " tokens/s"));
  }
  PENSTOCK_TRY(run->engine().settle());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double steps = std::max<double>(1, static_cast<double>(run->engine().steps_done() - first));
  const engine::Moved moved = run->engine().moved();
  const auto read = static_cast<double>(moved.read_bytes), written = static_cast<double>(moved.written_bytes);
  const auto parameters = static_cast<double>(settings.model.parameters());
  const MixCurve drives = settings.engine.request.machine.striped();
  const bool floor_known = !drives.empty() && read + written > 0;
  const double floor_s = floor_known ? (read + written) / (drives.gbps(read / (read + written)) * 1e9) / steps : 0;

  Answer answer;
  answer.json = {
      {"steps", run->engine().steps_done()},
      {"loss_first", loss_first},
      {"loss_last", loss_last},
      {"step_s", seconds / steps},
      {"predicted_s", run->engine().predicted_step_s()},
      {"floor_s", floor_s},
      {"tokens_per_s", tokens * steps / seconds},
      {"bytes_per_parameter", {{"read", read / steps / parameters}, {"written", written / steps / parameters}}},
      {"peak_rss_bytes", resident_bytes_peak()},
      {"budget_bytes", settings.engine.request.budgets.host_bytes},
      {"parameters", settings.model.parameters()},
      {"store", flags.stores}};
  if (first == run->engine().steps_done()) {
    answer.text = text("nothing to do: the store is at step ", first, " already\n");
    return answer;
  }
  answer.text =
      text("budget\n", run->engine().description(), "\nsteps ", first + 1, " to ", run->engine().steps_done(),
           ": loss ", fixed(loss_first, 3), " to ", fixed(loss_last, 3), "\n", fixed(seconds / steps, 2),
           " s a step, predicted ", fixed(run->engine().predicted_step_s(), 2), " s; ",
           fixed(tokens * steps / seconds, 0), " tokens/s; ", fixed(read / steps / parameters, 2), " B read and ",
           fixed(written / steps / parameters, 2), " B written a parameter and step\npeak memory ",
           bytes_text(resident_bytes_peak()), " of ", bytes_text(settings.engine.request.budgets.host_bytes), "\n");
  return answer;
}

}  // namespace
}  // namespace penstock::tools

int main(int argc, char** argv) {
  penstock::tools::watch_for_interrupts();
  return penstock::tools::run_command({penstock::tools::train_verb_with(penstock::tools::train)},
                                      {argv + 1, argv + argc});
}
