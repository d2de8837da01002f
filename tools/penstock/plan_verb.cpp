#include <chrono>
#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/plan_flags.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/advice.h"
#include "tools/plan/forecast_json.h"
#include "tools/plan/forecast_text.h"
#include "tools/plan/gantt.h"
#include "tools/plan/known_models.h"
#include "tools/plan/machine_choice.h"
#include "tools/plan/output_words.h"
#include "tools/plan/trace.h"
#include "tools/system/interrupt.h"

namespace penstock::tools {
namespace {

constexpr std::chrono::seconds kSaysAfter{1};  // that it takes long

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (OptimizerKind kind : kOptimizerKinds) names.emplace_back(name_of(kind));
  return names;
}

// Where only some steps are durable, the drawing shows those, which take longer than the mean.
std::string drawn_text(const Forecast& result) {
  if (result.durability.durable_share() == 1) return "";
  return text("; drawn: durable steps, of ", seconds_text(result.simulation.step_s));
}

// The files that were asked for, of the simulated steps.
Status write_pictures(const PlanFlags& flags, const Forecast& result, Answer& answer) {
  if (!result.request.record_spans) return Status();
  const std::string title = text(result.request.shape.name, " on ", result.request.machine.name, ": a step takes ",
                                 step_text(result), drawn_text(result));
  auto write = [&](const std::string& path, const std::string& content, const char* what, const char* key) {
    answer.text += text(what, ": ", path, "\n");
    answer.json[key] = path;
    return write_new_file(path, content, flags.force);
  };
  if (!flags.gantt.empty()) {
    PENSTOCK_TRY(
        write(flags.gantt, gantt_svg(*result.plan, result.simulation, title), "lanes over time", "gantt_path"));
  }
  if (flags.trace.empty()) return Status();
  const std::vector<Unit>& units = result.rank_request.workload.units;
  return write(flags.trace, chrome_trace(*result.plan, units, result.simulation, title), "trace", "trace_path");
}

Result<Answer> plan(Session& session, const PlanFlags& flags) {
  PENSTOCK_TRY_ASSIGN(request, request_of(flags));
  const ForecastRequest asked = request;
  const auto begin = std::chrono::steady_clock::now();
  const auto says = [&](double share, const std::string& what) {
    if (std::chrono::steady_clock::now() - begin > kSaysAfter) session.progress.update(share, "planning with " + what);
  };
  auto endable = std::make_optional<EndsWhenInterrupted>(session.interrupted_answer);
  PENSTOCK_TRY(check_interrupted());
  PENSTOCK_TRY_ASSIGN(result, forecast(std::move(request), says));
  Answer answer;
  answer.text = forecast_text(result);
  answer.json = forecast_json(result);
  answer.verdict = forecast_verdict(result);
  if (result.fits && (flags.advise || flags.step_time_s > 0 || flags.drive_life_days > 0)) {
    const Wishes wishes{.changes = flags.advise, .step_s = flags.step_time_s, .drive_life_days = flags.drive_life_days};
    PENSTOCK_TRY_ASSIGN(advice, advise(asked, result, wishes, says));
    session.progress.clear();
    answer.text += "\n" + advice_text(advice, result);
    answer.json["advice"] = advice_json(advice);
  }
  endable.reset();
  if (result.fits) PENSTOCK_TRY(write_pictures(flags, result, answer));
  return answer;
}

void model_options(Options& options, PlanFlags& flags) {
  std::string names;
  for (const ModelShape& shape : known_models()) names += (names.empty() ? "" : ", ") + shape.name;
  options.text("--model", flags.model, "NAME|FILE", "A Hugging Face config.json, or one of " + names);
  options.text("--params", flags.parameters, "N",
               "Number of parameters, such as 7e9; sizes that are not given follow from it");
  options.count("--layers", flags.wish.layers, "Number of blocks");
  options.count("--hidden", flags.wish.hidden, "Model width (hidden size)");
  options.count("--heads", flags.wish.heads, "Attention heads");
  options.count("--kv-heads", flags.wish.kv_heads, "Heads for keys and values (grouped-query attention)");
  options.count("--ffn", flags.wish.ffn, "Width of the feed-forward layer");
  options.count("--vocab", flags.wish.vocab, "Vocabulary size");
}

void machine_options(Options& options, PlanFlags& flags) {
  options.text("--machine", flags.machine, "NAME|FILE",
               "Profile written by `penstock nvme probe --profile FILE`, or one of " + shipped_machine_names() +
                   "; default: this machine's, ~/.config/penstock/profile.json");
  options.text(
      "--budget", flags.budget, "TIER=SIZE,...",
      "Such as device=8GiB,host=24GiB,nvme=400GiB: device for each device, the others for the node; default: nine "
      "tenths of what it has");
  options.count("--ranks", flags.ranks,
                "Processes of each node, which share its drives, host memory and cores, each on a device of "
                "its own where there are any; default: one for each device");
  options.choice(
      "--stage", flags.stage, {"auto", "0", "1", "2", "3", "hybrid"},
      "What ranks share, by ZeRO: 0: gradients alone; 1 and 2: the state too; 3: weights too; hybrid: 3 within "
      "each node; auto: the fastest that fits");
  options.flag("--quantized-weights", flags.quantized_weights,
               "Ranks gather weights in int8, as with zero_quantized_weights: half the bytes, other bits");
  options.flag("--quantized-gradients", flags.quantized_gradients,
               "Ranks send gradients in int4, as with zero_quantized_gradients: about a quarter of the bytes, other "
               "bits");
  options.count("--nodes", flags.nodes, "Such machines that train together, each with --ranks");
  options.rate("--network", flags.network_gbps,
               "What a node takes from the others, GB/s; default: the profile's network_gbps, else 12.5");
  options.rate("--flops", flags.flops, "Floating-point operations per second that one device achieves");
  options.rate("--host-gbps", flags.host_gbps, "Memory bandwidth of updates on the CPU, GB/s");
}

void step_options(Options& options, PlanFlags& flags) {
  options.count("--tokens", flags.tokens, "Tokens per step over all ranks; 0: 65536 per device, 8192 on a CPU");
  options.count("--seq", flags.sequence, "Tokens per sequence; 0: 2048, or the model's positions if fewer");
  options.count("--micro-batches", flags.micro_batches,
                "Micro-batches per step and rank; 0: as many as make about 8192 tokens each");
  options.choice("--optimizer", flags.optimizer, optimizer_names(), "Optimizer");
  options.choice("--moments", flags.moments, {"fp32", "bf16", "int8"}, "How moments are stored");
  options.choice("--activations", flags.activations, {"keep", "recompute", "offload", "recompute-offload", "auto"},
                 "How backward gets the activations of forward; auto: the fastest way that fits");
  options.choice("--clip", flags.clip, {"on", "off"}, "Clip gradients to a norm");
  options.share("--strike-share", flags.strike_share, "Expected share of steps whose gradients are clipped");
  options.durability("--durability", flags.durability);
  options.choice(
      "--space", flags.space, {"double", "single"},
      "Slots for each tile on the drives; single halves the space, but a crash during a step loses the store");
  options.count("--lora-rank", flags.lora_rank,
                "Train adapters of this rank on every matrix of the blocks, all else frozen (LoRA)");
  options.choice("--base", flags.base, {"bf16", "int8", "nf4"},
                 "What the frozen blocks' matrices rest in; needs --lora-rank; default: bf16");
  options.flag("--update-only", flags.update_only, "Plan the optimizer's part of a step alone");
}

}  // namespace

Verb plan_verb() {
  auto flags = std::make_shared<PlanFlags>();
  return {
      "plan",
      "Predict whether a model fits, how long a step takes and what limits it",
      "Makes the plan that training would run and runs it in virtual time, at the measured rates of this machine or\n"
      "those of another. Without a model it plans small-gpt, of 14M parameters. Exit code 3: it does not fit, and the "
      "table\n"
      "shows what the smallest plan needs. A lane's last column is what the step would gain if it were a tenth "
      "faster:\n"
      "the step is bound by the one that brings the most, however long it is busy.\n\n"
      "A unit is a block, the embedding or the head. A tile is a run of parameters that is read, updated and written\n"
      "together; the tile window is host memory for tiles under way. Each tile has two or three slots on its drive,\n"
      "so that a step never overwrites the last; with --space single it has one. The manual page explains every line: "
      "penstock manual --into FOLDER,\n"
      "then man FOLDER/penstock-plan.1.",
      {{"penstock plan --params 7e9 --layers 32 --machine rtx4090-2gen4", "A 7B model on a desktop"},
       {"penstock plan --model config.json --budget host=64GiB --gantt step.svg",
        "A Hugging Face model, with a drawing of the step"},
       {"penstock plan --model llama-2-7b --machine rtx4090-2gen4 --lora-rank 16 --base nf4 --advise",
        "QLoRA on a desktop, and what more hardware would bring"},
       {"penstock plan --model llama-3-70b --machine 8h200-8gen5 --tokens 512k --json",
        "A node with eight GPUs, as JSON"},
       {"penstock plan --model llama-3-70b --machine 8h200-8gen5 --ranks 8 --nodes 4 --network 50", "Four such nodes"},
       {"penstock plan --model gpt2 --machine cpu-2core --ranks 2 --stage 3",
        "Two processes that share one host, weights sharded"}},
      [flags](Options& options) -> Action {
        model_options(options, *flags);
        machine_options(options, *flags);
        step_options(options, *flags);
        options.flag("--advise", flags->advise,
                     "Plan again with one more drive, more memory and faster links, and say what each would bring");
        options.seconds("--step-time", flags->step_time_s,
                        "Aim: the least host memory with which a step takes no longer");
        options.rate("--drive-life", flags->drive_life_days,
                     "Aim: how rarely steps must be durable for the drives' rated life to last so many days");
        options.file("--gantt", flags->gantt, "Draw the lanes over time as an SVG file");
        options.file("--trace", flags->trace,
                     "Write every move of the simulated steps as a Chrome trace (ui.perfetto.dev shows it)");
        options.flag("--force", flags->force, "Overwrite the drawing and the trace if they exist");
        return [flags](Session& session) { return plan(session, *flags); };
      },
      words_of_forecasts()};
}

}  // namespace penstock::tools
