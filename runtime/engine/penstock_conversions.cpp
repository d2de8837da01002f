#include "runtime/engine/penstock_conversions.h"

#include <algorithm>
#include <cmath>

namespace penstock::engine {
namespace {

constexpr double kHangsAfterMostS = 600;  // that a rank is waited for, whatever it does

// One of 0 to `last`.
template <typename Enum>
Result<Enum> chosen(const char* name, int value, Enum last) {
  if (value >= 0 && value <= static_cast<int>(last)) return static_cast<Enum>(value);
  return usage(text(name, ": ", value, ": from 0 to ", static_cast<int>(last), " expected"));
}

Result<std::vector<EmbeddedParameter>> parameters_of(const penstock_parameter* parameters, uint32_t count) {
  if (parameters == nullptr && count > 0) return usage("parameters: NULL");
  std::vector<EmbeddedParameter> all;
  for (uint32_t i = 0; i < count; ++i) {
    const penstock_parameter& given = parameters[i];
    PENSTOCK_TRY_ASSIGN(dtype, dtype_of(given.dtype));
    all.push_back({.name = given.name != nullptr ? given.name : text("parameter ", i),
                   .elements = given.elements,
                   .group = given.group,
                   .dtype = dtype,
                   .initial = static_cast<const std::byte*>(given.initial),
                   .weights = weights_of(given.weights_into),
                   .unit = given.unit});
  }
  return all;
}

}  // namespace

Status usage(const std::string& message) { return Status(Code::kUsage, message); }

Result<Dtype> dtype_of(int dtype) {
  switch (dtype) {
    case PENSTOCK_FP32:
      return Dtype::fp32;
    case PENSTOCK_BF16:
      return Dtype::bf16;
    case PENSTOCK_FP16:
      return Dtype::fp16;
    default:
      return usage(text("dtype: ", dtype, ": PENSTOCK_FP32, PENSTOCK_BF16 or PENSTOCK_FP16 expected"));
  }
}

int c_dtype_of(Dtype dtype) {
  return dtype == Dtype::fp32 ? PENSTOCK_FP32 : dtype == Dtype::bf16 ? PENSTOCK_BF16 : PENSTOCK_FP16;
}

Result<Role> role_of(int role) {
  switch (role) {
    case PENSTOCK_WEIGHT:
      return Role::weight;
    case PENSTOCK_MOMENTUM:
      return Role::momentum;
    case PENSTOCK_VARIANCE:
      return Role::variance;
    default:
      return usage(text("role: ", role, ": PENSTOCK_WEIGHT, PENSTOCK_MOMENTUM or PENSTOCK_VARIANCE expected"));
  }
}

EmbeddedParameter::Weights weights_of(void* weights_into) {
  if (weights_into == PENSTOCK_WEIGHTS_OUT) return {.into = nullptr, .out = true};
  return {.into = static_cast<std::byte*>(weights_into), .out = false};
}

Result<EmbeddedOptions> options_of(const penstock_options& given, const penstock_parameter* parameters,
                                   uint32_t parameter_count) {
  EmbeddedOptions options;
  for (uint32_t i = 0; i < given.drive_count; ++i) {
    if (given.drives == nullptr || given.drives[i] == nullptr) return usage(text("drives: number ", i, " is NULL"));
    options.drives.emplace_back(given.drives[i]);
  }
  PENSTOCK_TRY_ASSIGN(all, parameters_of(parameters, parameter_count));
  options.parameters = std::move(all);
  PENSTOCK_TRY_ASSIGN(optimizer, chosen("optimizer", given.optimizer, kOptimizerKinds.back()));
  PENSTOCK_TRY_ASSIGN(existing, chosen("existing", given.existing, EmbeddedOptions::Existing::replace));
  PENSTOCK_TRY_ASSIGN(durable, chosen("durability", given.durability, Durability::Kind::exit));
  if (durable == Durability::Kind::every && given.durable_every == 0) {
    return usage("durable_every: 0: every how many steps are durable is missing");
  }
  if (!(given.clip_norm >= 0) || !std::isfinite(given.clip_norm)) {
    return usage(text("clip_norm: ", given.clip_norm, ": 0 or more expected"));
  }
  if (given.threads > cpu_optim::UpdateWorkersOptions::kThreadsMax) {
    return usage(
        text("threads: ", given.threads, ": at most ", cpu_optim::UpdateWorkersOptions::kThreadsMax, " expected"));
  }
  constexpr uint32_t kSlotsMost = 3;
  if (given.slots > kSlotsMost) return usage(text("slots: ", given.slots, ": at most ", kSlotsMost, " expected"));
  options.settings = {.optimizer = optimizer,
                      .micro_batches = std::max(given.micro_batches, 1u),
                      .whole_steps = given.whole_steps != 0,
                      .clipping = {.norm = given.clip_norm, .skips_overflow = given.skip_overflow != 0}};
  options.existing = existing;
  options.durability = {durable, std::max(given.durable_every, 1u)};
  options.host_bytes = given.host_bytes;
  options.slots = given.slots;
  options.threads = given.threads;
  options.initial_step = given.initial_step;
  PENSTOCK_TRY_ASSIGN(sharing, chosen("sharing", given.sharing, EmbeddedOptions::Sharing::nothing));
  options.sharing = sharing;
  if (!(given.hangs_after_s >= 0 && given.hangs_after_s <= kHangsAfterMostS)) {
    return usage(text("hangs_after_s: ", given.hangs_after_s, ": from 0 to ", kHangsAfterMostS, " expected"));
  }
  if (given.hangs_after_s > 0)
    options.hangs_after = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(given.hangs_after_s * 1000)));
  if (given.ranks_of_environment != 0) {
    PENSTOCK_TRY_ASSIGN(place, find_rank_place());
    options.place = place;
  }
  if (given.initial != nullptr) {
    options.initial = [fill = given.initial, context = given.initial_context](uint32_t parameter, uint64_t first,
                                                                              std::span<float> values) {
      const int refusal = fill(context, parameter, first, values.size(), values.data());
      return refusal == 0 ? Status() : usage(text("initial: parameter ", parameter, ": the caller returned ", refusal));
    };
  }
  if (given.weights_out != nullptr) {
    options.weights_out = [out = given.weights_out, context = given.weights_out_context](
                              uint32_t parameter, uint64_t first, Dtype dtype, std::span<const std::byte> bytes) {
      const uint64_t count = bytes.size() / bytes_of(dtype);
      const int refusal = out(context, parameter, first, count, c_dtype_of(dtype), bytes.data());
      if (refusal == 0) return Status();
      return Status(Code::kEnvironment,
                    text("weights out: parameter ", parameter, ", ", count, " values from ", first,
                         " on: the caller returned ", refusal),
                    "open the store again: it has the last committed step, and penstock_read() its weights");
    };
  }
  return options;
}

Result<ComputePass> pass_of(const penstock_pass* pass) {
  if (pass == nullptr) return usage("pass: NULL");
  PENSTOCK_TRY_ASSIGN(direction, chosen("direction", pass->direction, Direction::backward));
  return ComputePass{direction, pass->unit, pass->micro_batch};
}

penstock_pass c_pass_of(const ComputePass& pass) {
  const int direction = pass.direction == Direction::forward ? PENSTOCK_FORWARD : PENSTOCK_BACKWARD;
  return {pass.use, pass.micro_batch, direction};
}

std::vector<Hyper> hypers_of(std::span<const penstock_rates> groups) {
  std::vector<Hyper> hypers;
  for (const penstock_rates& given : groups) {
    hypers.push_back({given.lr, given.beta1, given.beta2, given.eps, given.weight_decay, given.momentum,
                      given.dampening, given.nesterov != 0, given.lr_decay});
  }
  return hypers;
}

penstock_report c_report_of(const StepReport& done) {
  return {.step = done.step,
          .verdict = done.verdict == Verdict::confirm ? PENSTOCK_CONFIRMED
                     : done.verdict == Verdict::skip  ? PENSTOCK_SKIPPED
                                                      : PENSTOCK_CLIPPED,
          .gradient_norm = done.gradient_norm,
          .clip_factor = done.clip_factor,
          .wall_s = done.wall_s,
          .read_bytes = done.read_bytes,
          .written_bytes = done.written_bytes};
}

}  // namespace penstock::engine
