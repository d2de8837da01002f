#include "runtime/trainer/config/effective_config.h"

#include <map>
#include <nlohmann/json.hpp>

namespace penstock::trainer {
namespace {

using json = nlohmann::ordered_json;

const char* words_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
      return "AdamW";
    case OptimizerKind::adam:
      return "Adam";
    case OptimizerKind::adagrad:
      return "Adagrad";
    case OptimizerKind::lion:
      return "Lion";
    case OptimizerKind::sgd:
      return "SGD";
  }
  return "";
}

const char* words_of(MomentForm form) {
  return form == MomentForm::fp32 ? "fp32" : form == MomentForm::bf16 ? "bf16" : "int8";
}

json optimizer_json(const TrainConfig& config) {
  const Hyper& hyper = config.hyper;
  json params = {{"lr", hyper.lr}};
  switch (config.optimizer) {
    case OptimizerKind::adamw:
    case OptimizerKind::adam:
      params["betas"] = {hyper.beta1, hyper.beta2};
      params["eps"] = hyper.eps;
      break;
    case OptimizerKind::lion:
      params["betas"] = {hyper.beta1, hyper.beta2};
      break;
    case OptimizerKind::adagrad:
      params["eps"] = hyper.eps;
      params["lr_decay"] = hyper.lr_decay;
      break;
    case OptimizerKind::sgd:
      params["momentum"] = hyper.momentum;
      params["dampening"] = hyper.dampening;
      params["nesterov"] = hyper.nesterov;
      break;
  }
  params["weight_decay"] = hyper.weight_decay;
  return {{"type", words_of(config.optimizer)}, {"params", params}};
}

json scheduler_json(const Schedule& schedule) {
  json params = json::object();
  auto ours = [&](const char* type) {
    params["warmup_steps"] = schedule.warmup_steps;
    if (schedule.kind != ScheduleKind::constant) {
      if (schedule.total_steps > 0) params["total_steps"] = schedule.total_steps;
      params["end_ratio"] = schedule.end_ratio;
    }
    return json{{"type", type}, {"params", params}};
  };
  auto warming = [&] {
    params["warmup_num_steps"] = schedule.warmup_num_steps;
    params["warmup_type"] = schedule.warmup_type == WarmupType::log ? "log" : "linear";
    if (schedule.kind != ScheduleKind::warmup && schedule.total_num_steps > 0)
      params["total_num_steps"] = schedule.total_num_steps;
  };
  switch (schedule.kind) {
    case ScheduleKind::constant:
      return ours("constant");
    case ScheduleKind::linear:
      return ours("linear");
    case ScheduleKind::cosine:
      return ours("cosine");
    case ScheduleKind::lr_range_test:
      params["lr_range_test_min_lr"] = schedule.range_min_lr;
      params["lr_range_test_step_size"] = schedule.range_step_size;
      params["lr_range_test_step_rate"] = schedule.range_step_rate;
      params["lr_range_test_staircase"] = schedule.range_staircase;
      return {{"type", "LRRangeTest"}, {"params", params}};
    case ScheduleKind::one_cycle:
      params["cycle_min_lr"] = schedule.cycle_min_lr;
      params["cycle_max_lr"] = schedule.cycle_max_lr;
      params["cycle_first_step_size"] = schedule.cycle_first_step_size;
      if (schedule.cycle_second_step_size) params["cycle_second_step_size"] = *schedule.cycle_second_step_size;
      params["cycle_first_stair_count"] = schedule.cycle_first_stair_count;
      if (schedule.cycle_second_stair_count) params["cycle_second_stair_count"] = *schedule.cycle_second_stair_count;
      params["decay_step_size"] = schedule.decay_step_size;
      params["decay_lr_rate"] = schedule.decay_lr_rate;
      params["cycle_momentum"] = schedule.cycle_momentum;
      params["cycle_min_mom"] = schedule.cycle_min_mom;
      params["cycle_max_mom"] = schedule.cycle_max_mom;
      params["decay_mom_rate"] = schedule.decay_mom_rate;
      return {{"type", "OneCycle"}, {"params", params}};
    case ScheduleKind::warmup:
    case ScheduleKind::warmup_decay:
      params["warmup_min_lr"] = schedule.warmup_min_lr;
      if (schedule.warmup_max_lr) params["warmup_max_lr"] = *schedule.warmup_max_lr;
      warming();
      return {{"type", schedule.kind == ScheduleKind::warmup ? "WarmupLR" : "WarmupDecayLR"}, {"params", params}};
    case ScheduleKind::warmup_cosine:
      warming();
      params["warmup_min_ratio"] = schedule.warmup_min_ratio;
      params["cos_min_ratio"] = schedule.cos_min_ratio;
      return {{"type", "WarmupCosineLR"}, {"params", params}};
  }
  return {};
}

json fp16_json(const LossScaling& scaling) {
  return {{"loss_scale", scaling.scale},
          {"initial_scale_power", scaling.initial_scale_power},
          {"loss_scale_window", scaling.window},
          {"hysteresis", scaling.hysteresis},
          {"consecutive_hysteresis", scaling.consecutive_hysteresis},
          {"min_loss_scale", scaling.least}};
}

json rules_json(const std::vector<ParameterRule>& rules) {
  json list = json::array();
  for (const ParameterRule& rule : rules) {
    json item = {{"pattern", rule.pattern}};
    if (rule.lr) item["lr"] = *rule.lr;
    if (rule.weight_decay) item["weight_decay"] = *rule.weight_decay;
    if (rule.frozen) item["frozen"] = true;
    list.push_back(item);
  }
  return list;
}

json lora_json(const LoraConfig& lora) {
  json section = json::object();
  if (lora.rank > 0) section["rank"] = lora.rank;
  if (lora.alpha) section["alpha"] = *lora.alpha;
  section["dropout"] = lora.dropout;
  section["rslora"] = lora.rslora;
  if (!lora.targets.empty())
    section["targets"] = lora.targets;
  else
    section["targets"] = lora.target_pattern.empty() ? "all-linear" : lora.target_pattern;
  if (!lora.modules_to_save.empty()) section["modules_to_save"] = lora.modules_to_save;
  if (lora.base) section["base"] = name_of(*lora.base);
  if (!lora.adapter.empty()) section["adapter"] = lora.adapter;
  return section;
}

json samples_json(const SampleConfig& samples) {
  json section = json::object();
  if (!samples.prompts.empty()) {
    section["prompts"] = json::array();
    for (const std::string& prompt : samples.prompts) section["prompts"].push_back(json::parse(prompt, nullptr, false));
  }
  if (!samples.file.empty()) section["file"] = samples.file;
  if (samples.seed) section["seed"] = *samples.seed;
  if (!samples.tokenizer.empty()) section["tokenizer"] = samples.tokenizer;
  section["max_new_tokens"] = samples.max_new_tokens;
  section["temperature"] = samples.rules.temperature;
  section["top_k"] = samples.rules.top_k;
  section["top_p"] = samples.rules.top_p;
  return section;
}

json rules_of_loss_json(const LossRules& rules) {
  return {{"not_finite", name_of(rules.not_finite)},
          {"spike", name_of(rules.spike)},
          {"window", rules.window},
          {"deviations", rules.deviations},
          {"rate_factor", rules.rate_factor},
          {"rate_steps", rules.rate_steps},
          {"at_most", rules.at_most}};
}

json placement_json(const TrainConfig& config) {
  json section = json::object();
  auto if_said = [&](const char* key, const std::string& value) {
    if (!value.empty()) section[key] = value;
  };
  if_said("run", config.run);
  if (!config.stores.empty()) section["stores"] = config.stores;
  if (config.device != "auto") section["device"] = config.device;
  if_said("device_budget", config.device_budget);
  if_said("host_budget", config.host_budget);
  if_said("nvme_budget", config.nvme_budget);
  section["durability"] = config.durability;
  section["space"] = config.space;
  section["activations"] = config.activations;
  if (config.keep_share) section["keep_share"] = *config.keep_share;
  section["micro_batch_group"] = config.micro_batch_group;
  section["weights"] = config.weights;
  if (config.host_state_share) section["host_state_share"] = *config.host_state_share;
  if (config.device_share) section["device_share"] = *config.device_share;
  section["moments"] = words_of(config.moments);
  section["threads"] = config.threads;
  section["io_engine"] = config.io_engine;
  if (config.hangs_after_s != TrainConfig().hangs_after_s) section["hangs_after_s"] = config.hangs_after_s;
  if_said("machine", config.machine);
  return section;
}

json whole_json(const TrainConfig& config) {
  json file = json::object();
  if (!config.model.empty()) file["model"] = config.model;
  if (config.from_scratch) file["from_scratch"] = true;
  if (!config.data.empty()) {
    file["data"] = json::array();
    for (const DataFile& data : config.data) {
      file["data"].push_back({{"path", data.path}, {"weight", data.weight}});
      if (!data.hash.empty()) file["data"].back()["hash"] = data.hash;
    }
  }
  if (config.token_bytes > 0) file["token_bytes"] = config.token_bytes;
  file["sequence_length"] = config.sequence_length;
  file["held_out_share"] = config.held_out_share;
  if (!config.leave_out.empty()) file["leave_out"] = json::parse(json_of(config.leave_out));
  file["eval_every"] = config.eval_every;
  file["eval_batches"] = config.eval_batches;
  if (config.early_stopping != PatienceRules())
    file["early_stopping"] = {{"patience", config.early_stopping.evaluations},
                              {"min_delta", config.early_stopping.least_gain}};
  if (config.loss_rules != LossRules()) file["loss_rules"] = rules_of_loss_json(config.loss_rules);
  if (config.sample_every > 0) file["sample_every"] = config.sample_every;
  if (config.samples != SampleConfig()) file["samples"] = samples_json(config.samples);
  file["keep_every"] = config.keep_every;
  file["keep_best"] = config.keep_best;
  file["seed"] = config.seed;
  file["max_steps"] = config.max_steps;
  file["epochs"] = config.epochs;
  file["steps_per_print"] = config.steps_per_print;
  if (config.train_batch > 0) file["train_batch_size"] = config.train_batch;
  if (config.micro_batch > 0) file["train_micro_batch_size_per_gpu"] = config.micro_batch;
  if (config.accumulation > 0) file["gradient_accumulation_steps"] = config.accumulation;
  if (config.zero_stage) file["zero_optimization"]["stage"] = *config.zero_stage;
  if (config.shard_ranks > 0) file["zero_optimization"]["mics_shard_size"] = config.shard_ranks;
  const RankCodes& codes = config.codes;
  if (codes.weights) file["zero_optimization"]["zero_quantized_weights"] = true;
  if (codes.frozen_weights) file["zero_optimization"]["zero_quantized_nontrainable_weights"] = true;
  if (codes.gradients) file["zero_optimization"]["zero_quantized_gradients"] = true;
  file["precision"] = name_of(config.precision);
  if (config.precision == Dtype::fp16) file["fp16"] = fp16_json(config.loss_scaling);
  file["tf32"] = config.tf32;
  file["deterministic"] = config.deterministic;
  file["gradient_clipping"] = config.gradient_clipping;
  if (config.skip_overflow) file["skip_overflow"] = *config.skip_overflow;
  file["optimizer"] = optimizer_json(config);
  file["scheduler"] = scheduler_json(config.schedule);
  if (!config.rules.empty()) file["parameters"] = rules_json(config.rules);
  if (config.lora != LoraConfig()) file["lora"] = lora_json(config.lora);
  file["head_tokens"] = config.head_tokens;
  file["head_rows"] = config.head_rows;
  file["penstock"] = placement_json(config);
  return file;
}

// "a.b" to its value, lists as they are written.
void flatten(const std::string& prefix, const json& value, std::map<std::string, std::string>& into) {
  if (!value.is_object()) {
    into[prefix] = value.dump();
    return;
  }
  for (const auto& [key, below] : value.items()) flatten(prefix.empty() ? key : prefix + "." + key, below, into);
}

}  // namespace

std::string effective_json(const TrainConfig& config) {
  return whole_json(config).dump(2, ' ', false, json::error_handler_t::replace);
}

std::string config_identity(const TrainConfig& config) {
  std::string identity =
      text("seed ", config.seed, ", sequence_length ", config.sequence_length, ", held_out_share ",
           config.held_out_share, ", micro-batch ", config.micro_batch, ", accumulation ", config.accumulation,
           ", head_tokens ", config.head_tokens, ", head_rows ", config.head_rows);
  const RankCodes& codes = config.codes;
  if (codes.any()) {
    identity += text(", in codes:", codes.weights ? " weights" : "", codes.frozen_weights ? " frozen weights" : "",
                     codes.gradients ? " gradients" : "");
  }
  // How much adapters count; their shapes are the store's.
  const LoraConfig& lora = config.lora;
  if (lora.rank > 0)
    identity += text(", lora rank ", lora.rank, " alpha ", lora.alpha.value_or(lora.rank), lora.rslora ? " rslora" : "",
                     ", dropout ", lora.dropout);
  return identity;
}

std::vector<std::string> changed_keys(const std::string& before, const std::string& now) {
  std::map<std::string, std::string> then_values, now_values;
  flatten("", json::parse(before, nullptr, false), then_values);
  flatten("", json::parse(now, nullptr, false), now_values);
  std::vector<std::string> changes;
  for (const auto& [key, value] : then_values) {
    const auto found = now_values.find(key);
    if (found == now_values.end())
      changes.push_back(text(key, ": ", value, ", now not said"));
    else if (found->second != value)
      changes.push_back(text(key, ": ", value, ", now ", found->second));
  }
  for (const auto& [key, value] : now_values)
    if (!then_values.contains(key)) changes.push_back(text(key, ": not said, now ", value));
  return changes;
}

}  // namespace penstock::trainer
