#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_report.h"
#include "tools/plan/gantt.h"
#include "tools/plan/known_models.h"
#include "tools/plan/machine_choice.h"
#include "tools/plan/shape_solver.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::string model, parameters;
  ShapeWish wish;
  std::string machine, budget;
  double flops = 0, host_gbps = 0;  // 0: as the profile says
  uint64_t tokens = 0, sequence = 0, micro_batches = 0;
  std::string optimizer = "adamw", moments = "fp32", activations = "auto", clip = "on";
  std::optional<Durability> durability;
  double strike_share = 0;
  bool update_only = false;
  std::string gantt;
  bool force = false;
};

constexpr uint64_t kTokensUsual = 65536, kTokensUsualOnCpu = 8192, kSequenceUsual = 2048;

Result<ModelShape> choose_model(const Flags& flags) {
  ShapeWish wish = flags.wish;
  if (!flags.parameters.empty()) {
    Result<uint64_t> parameters = parse_count(flags.parameters);
    if (!parameters.ok()) return parameters.status().within("--params");
    if (*parameters == 0) return Status(Code::kUsage, "--params: '0': is no model", "such as 7e9 or 7B");
    wish.parameters = *parameters;
  }
  if (flags.model.empty()) return wish.empty() ? known_models().front() : solve_shape(wish);
  if (!wish.empty()) {
    return Status(Code::kUsage, text("model: ", flags.model, ": has its own sizes"),
                  "either --model, or --params and the flags beside it");
  }
  return load_model(flags.model);
}

Result<MachineProfile> machine_of(const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(machine, choose_machine(flags.machine));
  if (flags.flops > 0) machine.device_flops = flags.flops;
  if (flags.host_gbps > 0) machine.host_gbps = flags.host_gbps;
  return std::move(machine);
}

// "device=8GiB,host=24GiB,nvme=400GiB", any of them.
Result<Budgets> parse_budgets(std::string_view written) {
  Budgets budgets{0, 0, 0};
  while (!written.empty()) {
    const std::string_view one = written.substr(0, written.find(','));
    written.remove_prefix(std::min(written.size(), one.size() + 1));
    const size_t equals = one.find('=');
    const std::string_view tier = one.substr(0, equals);
    uint64_t* const into = tier == "device" ? &budgets.device_bytes
                           : tier == "host" ? &budgets.host_bytes
                           : tier == "nvme" ? &budgets.nvme_bytes
                                            : nullptr;
    if (into == nullptr || equals == std::string_view::npos) {
      return Status(Code::kUsage, text("--budget: '", one, "': is not a tier and a size"),
                    "--budget device=8GiB,host=24GiB,nvme=400GiB");
    }
    const Result<uint64_t> bytes = parse_bytes(one.substr(equals + 1));
    if (!bytes.ok()) return bytes.status().within("--budget");
    if (*bytes == 0) return Status(Code::kUsage, text("--budget: '", one, "': is nothing"), "a size above 0");
    if (*into != 0)
      return Status(Code::kUsage, text("--budget: '", one, "': is the second of its tier"), "one of each");
    *into = *bytes;
  }
  return budgets;
}

OptimizerKind optimizer_of(const std::string& name) {
  for (OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::adagrad, OptimizerKind::lion, OptimizerKind::sgd}) {
    if (name == name_of(kind)) return kind;
  }
  return OptimizerKind::adamw;
}

MomentForm moments_of(const std::string& name) {
  return name == "bf16" ? MomentForm::bf16 : name == "int8" ? MomentForm::int8 : MomentForm::fp32;
}

std::optional<ActivationChoice> activations_of(const std::string& name) {
  if (name == "keep") return ActivationChoice::keep;
  if (name == "recompute") return ActivationChoice::recompute;
  if (name == "offload") return ActivationChoice::offload;
  if (name == "recompute-offload") return ActivationChoice::recompute_offload;
  return std::nullopt;
}

Result<ForecastRequest> request_of(const Flags& flags) {
  ForecastRequest request;
  PENSTOCK_TRY_ASSIGN(shape, choose_model(flags));
  PENSTOCK_TRY_ASSIGN(machine, machine_of(flags));
  PENSTOCK_TRY_ASSIGN(budgets, parse_budgets(flags.budget));
  if (flags.micro_batches > 1'000'000) return Status(Code::kUsage, "--micro-batches: too many", "at most 1000000");
  request.shape = shape;
  request.machine = machine;
  request.budgets = budgets;
  request.durability = flags.durability;
  request.form.optimizer = optimizer_of(flags.optimizer);
  request.form.moments = moments_of(flags.moments);
  // What the norm may be makes no difference to a forecast.
  if (flags.clip == "on") request.clipping = {.norm = 1, .strike_share = flags.strike_share};
  request.pass = flags.update_only ? Pass::update_only : Pass::training;
  request.sequence = flags.sequence;
  if (request.sequence == 0)
    request.sequence = shape.positions > 0 ? std::min(kSequenceUsual, shape.positions) : kSequenceUsual;
  request.tokens = flags.tokens;
  if (request.tokens == 0) {
    const uint64_t usual = machine.devices == 0 ? kTokensUsualOnCpu : kTokensUsual * machine.devices;
    request.tokens = std::max(usual, request.sequence * std::max(1u, machine.devices));
  }
  request.micro_batches = static_cast<uint32_t>(flags.micro_batches);
  request.choices.activations = activations_of(flags.activations);
  request.record_spans = !flags.gantt.empty();
  return request;
}

Result<Answer> plan(Session&, const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(request, request_of(flags));
  PENSTOCK_TRY_ASSIGN(result, forecast(std::move(request)));
  Answer answer;
  answer.text = forecast_text(result);
  answer.json = forecast_json(result);
  answer.verdict = forecast_verdict(result);
  if (result.fits && !flags.gantt.empty()) {
    const std::string title =
        text(result.request.shape.name, " on ", result.request.machine.name, ": a step takes ", step_text(result));
    PENSTOCK_TRY(write_new_file(flags.gantt, gantt_svg(*result.plan, result.simulation, title), flags.force));
    answer.text += text("lanes over time: ", flags.gantt, "\n");
    answer.json["gantt_path"] = flags.gantt;
  }
  return answer;
}

void model_options(Options& options, Flags& flags) {
  std::string names;
  for (const ModelShape& shape : known_models()) names += (names.empty() ? "" : ", ") + shape.name;
  options.text("--model", flags.model, "NAME|FILE", "A config.json of Hugging Face, or one of " + names);
  options.text("--params", flags.parameters, "N", "Parameters, such as 7e9; sizes that are not given are derived");
  options.count("--layers", flags.wish.layers, "Blocks");
  options.count("--hidden", flags.wish.hidden, "Width");
  options.count("--heads", flags.wish.heads, "Attention heads");
  options.count("--kv-heads", flags.wish.kv_heads, "Heads for keys and values");
  options.count("--ffn", flags.wish.ffn, "Width of the feed-forward part");
  options.count("--vocab", flags.wish.vocab, "Words");
}

void machine_options(Options& options, Flags& flags) {
  options.text("--machine", flags.machine, "NAME|FILE",
               "A file that `penstock nvme probe --profile FILE` wrote, or one of " + shipped_machine_names() +
                   "; else what `penstock nvme probe` left of this machine in ~/.config/penstock/profile.json");
  options.text("--budget", flags.budget, "TIER=SIZE,...",
               "device=8GiB,host=24GiB,nvme=400GiB: of each device, and of the whole node; else most of what it has");
  options.rate("--flops", flags.flops, "Floating-point operations a second that one device achieves");
  options.rate("--host-gbps", flags.host_gbps, "Memory traffic of the CPU's updates, 10^9 B/s");
}

void step_options(Options& options, Flags& flags) {
  options.count("--tokens", flags.tokens, "Tokens of a step, over all devices; 0: usual");
  options.count("--seq", flags.sequence, "Tokens of a sequence; 0: 2048, or as many as the model has positions for");
  options.count("--micro-batches", flags.micro_batches, "Of each device; 0: of about 8192 tokens each");
  options.choice("--optimizer", flags.optimizer, {"adamw", "adam", "adagrad", "lion", "sgd"}, "What updates");
  options.choice("--moments", flags.moments, {"fp32", "bf16", "int8"}, "How moments rest");
  options.choice("--activations", flags.activations, {"keep", "recompute", "offload", "recompute-offload", "auto"},
                 "What backward needs of forward; auto: the fastest that fits");
  options.choice("--clip", flags.clip, {"on", "off"}, "Gradients are clipped to a norm");
  options.share("--strike-share", flags.strike_share, "Expected share of steps that clip");
  options.durability("--durability", flags.durability);
  options.flag("--update-only", flags.update_only, "Only the optimizer's part of a step");
}

}  // namespace

Verb plan_verb() {
  auto flags = std::make_shared<Flags>();
  return {
      "plan",
      "Tell whether a model fits, how long a step takes and what bounds it",
      "Makes the plan that training would run and lets it run in virtual time, at the rates of a machine: this one, a\n"
      "shipped one, or any with a profile. Without a model it plans the built-in small GPT. Exit code 3: does not "
      "fit;\n"
      "the table then shows what the smallest plan needs.",
      {{"penstock plan --params 7e9 --layers 32 --machine rtx4090-2gen4", "A 7B model on a desktop"},
       {"penstock plan --model config.json --budget host=64GiB --gantt step.svg", "A model of Hugging Face, drawn"},
       {"penstock plan --model llama-3-70b --machine 8h200-8gen5 --tokens 512k --json", "A node, for a program"}},
      [flags](Options& options) -> Action {
        model_options(options, *flags);
        machine_options(options, *flags);
        step_options(options, *flags);
        options.file("--gantt", flags->gantt, "Draw the lanes over time into this SVG file");
        options.flag("--force", flags->force, "Replace the drawing if it exists");
        return [flags](Session& session) { return plan(session, *flags); };
      }};
}

}  // namespace penstock::tools
