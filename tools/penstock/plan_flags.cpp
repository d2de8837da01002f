#include "tools/penstock/plan_flags.h"

#include <algorithm>

#include "tools/penstock/quantity.h"
#include "tools/plan/known_models.h"
#include "tools/plan/machine_choice.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kTokensUsual = 65536, kTokensUsualOnCpu = 8192, kSequenceUsual = 2048;
constexpr uint64_t kRanksRead = 1'000'000;  // more are refused as that many

Result<ModelShape> choose_model(const PlanFlags& flags) {
  ShapeWish wish = flags.wish;
  if (!flags.parameters.empty()) {
    Result<uint64_t> parameters = parse_count(flags.parameters);
    if (!parameters.ok()) return parameters.status().within("--params");
    if (*parameters == 0) return Status(Code::kUsage, "--params: 0: at least 1 expected", "--params 7B");
    wish.parameters = *parameters;
  }
  if (flags.model.empty()) return wish.empty() ? known_models().front() : solve_shape(wish);
  if (!wish.empty()) {
    return Status(Code::kUsage, text("--model: ", flags.model, " already sets every size"),
                  "either --model alone, or --params, --layers and the other sizes");
  }
  return load_model(flags.model);
}

Result<MachineProfile> machine_of(const PlanFlags& flags) {
  PENSTOCK_TRY_ASSIGN(machine, choose_machine(flags.machine));
  if (flags.flops > 0) machine.device_flops = flags.flops;
  if (flags.host_gbps > 0) machine.host_gbps = flags.host_gbps;
  if (flags.network_gbps > 0) machine.network_gbps = flags.network_gbps;
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
      return Status(Code::kUsage, text("--budget: '", one, "': TIER=SIZE expected, TIER device, host or nvme"),
                    "--budget device=8GiB,host=24GiB,nvme=400GiB");
    }
    const Result<uint64_t> bytes = parse_bytes(one.substr(equals + 1));
    if (!bytes.ok()) return bytes.status().within("--budget");
    if (*bytes == 0)
      return Status(Code::kUsage, text("--budget: '", one, "': a size above 0 expected"),
                    text("leave ", tier, "= out for nine tenths of what there is"));
    if (*into != 0)
      return Status(Code::kUsage, text("--budget: '", one, "': ", tier, "= given twice"), text("one size for ", tier));
    *into = *bytes;
  }
  return budgets;
}

OptimizerKind optimizer_of(const std::string& name) {
  for (OptimizerKind kind : kOptimizerKinds) {
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

Result<std::optional<AdapterShape>> adapters_of(const PlanFlags& flags) {
  if (!flags.lora_rank) {
    if (!flags.base) return std::optional<AdapterShape>();
    return Status(Code::kUsage, text("--base ", *flags.base, ": only a frozen model can rest in another form"),
                  "--lora-rank 16 with it");
  }
  if (flags.update_only) {
    return Status(Code::kUsage, "--lora-rank: does not go with --update-only, which plans no forward and backward",
                  "--lora-rank alone");
  }
  AdapterShape adapters{.rank = *flags.lora_rank};
  for (BlockCode code : {BlockCode::int8, BlockCode::nf4}) {
    if (flags.base && *flags.base == name_of(code)) adapters.base_code = code;
  }
  return std::optional<AdapterShape>(adapters);
}

std::optional<Stage> stage_of(const std::string& name) {
  if (name == "0") return Stage::replicated;
  if (name == "1" || name == "2") return Stage::states;
  if (name == "3") return Stage::sharded;
  if (name == "hybrid") return Stage::hybrid;
  return std::nullopt;
}

Result<uint32_t> ranks_of(const PlanFlags& flags, const MachineProfile& machine) {
  const uint32_t usual = std::max(1u, machine.devices);
  if (!flags.ranks) return usual;
  if (*flags.ranks > 0) return static_cast<uint32_t>(std::min<uint64_t>(*flags.ranks, kRanksRead));
  return Status(Code::kUsage, "--ranks: 0: at least 1 expected", text("--ranks ", usual));
}

}  // namespace

Result<ForecastRequest> request_of(const PlanFlags& flags) {
  ForecastRequest request;
  PENSTOCK_TRY_ASSIGN(shape, choose_model(flags));
  PENSTOCK_TRY_ASSIGN(machine, machine_of(flags));
  PENSTOCK_TRY_ASSIGN(budgets, parse_budgets(flags.budget));
  if (flags.micro_batches > 1'000'000)
    return Status(Code::kUsage, text("--micro-batches: ", flags.micro_batches, ": at most 1000000 expected"),
                  "--micro-batches 16");
  PENSTOCK_TRY_ASSIGN(adapters, adapters_of(flags));
  PENSTOCK_TRY_ASSIGN(ranks, ranks_of(flags, machine));
  if (flags.network_gbps > 0 && flags.nodes <= 1) {
    return Status(Code::kUsage, "--network: one node has no other to send to", "--nodes 2 with it, or leave it out");
  }
  request.shape = shape;
  request.adapters = adapters;
  request.machine = machine;
  request.budgets = budgets;
  request.ranks = ranks;
  request.nodes = static_cast<uint32_t>(std::min<uint64_t>(flags.nodes, kRanksRead));
  request.stage = stage_of(flags.stage);
  request.codes = {.weights = flags.quantized_weights, .gradients = flags.quantized_gradients};
  request.durability = flags.durability;
  if (flags.space == "single") request.slots = 1;
  request.form.optimizer = optimizer_of(flags.optimizer);
  request.form.moments = moments_of(flags.moments);
  // The norm itself makes no difference to a forecast.
  if (flags.clip == "on") request.clipping = {.norm = 1, .strike_share = flags.strike_share};
  request.scope = flags.update_only ? StepScope::update_only : StepScope::training;
  request.sequence = flags.sequence;
  if (request.sequence == 0)
    request.sequence = shape.positions > 0 ? std::min(kSequenceUsual, shape.positions) : kSequenceUsual;
  request.tokens = flags.tokens;
  if (request.tokens == 0) {
    const uint64_t all = uint64_t{ranks} * std::max(1u, request.nodes);
    const uint64_t usual = machine.devices == 0 ? kTokensUsualOnCpu * std::max(1u, request.nodes) : kTokensUsual * all;
    request.tokens = std::max(usual, request.sequence * all);
  }
  request.micro_batches = static_cast<uint32_t>(flags.micro_batches);
  request.choices.activations = activations_of(flags.activations);
  request.record_spans = !flags.gantt.empty() || !flags.trace.empty();
  return request;
}

}  // namespace penstock::tools
