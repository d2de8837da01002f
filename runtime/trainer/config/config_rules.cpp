#include "runtime/trainer/config/config_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu_optim/update_workers.h"

namespace penstock::trainer {
namespace {

using json = nlohmann::ordered_json;

constexpr double kMost = std::numeric_limits<double>::max();
constexpr uint32_t kThreadsMax = cpu_optim::UpdateWorkersOptions::kThreadsMax;
constexpr uint32_t kRankMax = 65536;

// Values by kind.

std::string number(const json& value, double least, double most, double& into) {
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
    return text("is ", value.dump(), ", a number ",
                most == kMost ? text("of at least ", least) : text("from ", least, " to ", most), " expected");
  into = value.get<double>();
  return "";
}

// DeepSpeed's files have whole numbers as 5e8 at times.
template <typename Number>
std::string whole(const json& value, double least, Number& into) {
  constexpr double most = sizeof(Number) == 4 ? 4294967295.0 : 9007199254740992.0;
  double found = 0;
  const std::string wrong = number(value, least, most, found);
  if (!wrong.empty() || found != std::floor(found))
    return text("is ", value.dump(), ", a whole number of at least ", least, " expected");
  into = static_cast<Number>(found);
  return "";
}

std::string stage(const json& value, uint32_t& into) {
  const std::string wrong = whole(value, 0, into);
  return wrong.empty() && into > 3 ? text("is ", into, ", 0 to 3 expected") : wrong;
}

std::string flag(const json& value, bool& into) {
  if (!value.is_boolean()) return text("is ", value.dump(), ", true or false expected");
  into = value.get<bool>();
  return "";
}

std::string words(const json& value, std::string& into) {
  if (!value.is_string()) return text("is ", value.dump(), ", a string expected");
  into = value.get<std::string>();
  return "";
}

template <typename Choice>
std::string choice(const json& value, std::initializer_list<std::pair<const char*, Choice>> choices, Choice& into) {
  std::string known;
  for (const auto& [name, meaning] : choices) {
    if (value == name) {
      into = meaning;
      return "";
    }
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return text("is ", value.dump(), ", one of these expected: ", known);
}

std::string read_device(const json& value, TrainConfig& config) {
  if (const std::string wrong = words(value, config.device); !wrong.empty()) return wrong;
  const std::string& device = config.device;
  if (device == "auto" || device == "cpu" || device == "host" || device == "cuda") return "";
  const bool has_number = device.starts_with("cuda:") && device.size() > 5 && device.size() <= 8 &&
                          device.find_first_not_of("0123456789", 5) == std::string::npos;
  return has_number ? "" : text("is ", value.dump(), ", one of these expected: auto, cpu, host, cuda, cuda:N");
}

// By either of two keys.
std::string shard_ranks(const json& value, TrainConfig& config) {
  const uint32_t before = config.shard_ranks;
  const std::string wrong = whole(value, 0, config.shard_ranks);
  if (!wrong.empty() || before == 0 || before == config.shard_ranks) return wrong;
  return text("is ", value.dump(), ", and mics_shard_size and zero_hpz_partition_size are one: ", before,
              " is said too");
}

std::string precision(const json& value, TrainConfig& config, Dtype dtype) {
  bool on = false;
  const std::string wrong = flag(value, on);
  if (on) config.precision = dtype;
  return wrong;
}

std::string read_betas(const json& value, TrainConfig& config) {
  if (!value.is_array() || value.size() != 2) return text("is ", value.dump(), ", two numbers expected");
  const std::string wrong = number(value[0], 0, 1, config.hyper.beta1);
  return wrong.empty() ? number(value[1], 0, 1, config.hyper.beta2) : wrong;
}

std::string read_data(const json& value, TrainConfig& config) {
  config.data.clear();
  const json list = value.is_array() ? value : json::array({value});
  for (const json& item : list) {
    DataFile file;
    if (item.is_string()) {
      file.path = item.get<std::string>();
    } else if (item.is_object() && item.contains("path") && item["path"].is_string()) {
      file.path = item["path"].get<std::string>();
      for (const auto& [key, of_key] : item.items()) {
        if (key == "weight") {
          if (std::string wrong = number(of_key, 1e-6, 1e12, file.weight); !wrong.empty()) return "weight " + wrong;
        } else if (key == "hash" && of_key.is_string()) {
          file.hash = of_key.get<std::string>();
        } else if (key != "path") {
          return text("is ", item.dump(), ", path, weight and hash expected");
        }
      }
    } else {
      return text("is ", item.dump(), ", a path or {\"path\": ..., \"weight\": ...} expected");
    }
    config.data.push_back(std::move(file));
  }
  return config.data.empty() ? "is empty, at least one file expected" : "";
}

std::string read_rules(const json& value, TrainConfig& config) {
  config.rules.clear();
  if (!value.is_array()) return text("is ", value.dump(), ", a list of rules expected");
  for (const json& item : value) {
    ParameterRule rule;
    std::string wrong;
    if (!item.is_object() || !item.contains("pattern")) return text("has ", item.dump(), ", which has no pattern");
    for (const auto& [key, setting] : item.items()) {
      if (key == "pattern")
        wrong = words(setting, rule.pattern);
      else if (key == "lr")
        wrong = number(setting, 0, kMost, rule.lr.emplace());
      else if (key == "weight_decay")
        wrong = number(setting, 0, kMost, rule.weight_decay.emplace());
      else if (key == "frozen")
        wrong = flag(setting, rule.frozen);
      else
        return text("has '", key, "'; pattern, lr, weight_decay and frozen are known");
      if (!wrong.empty()) return key + " " + wrong;
    }
    config.rules.push_back(std::move(rule));
  }
  return "";
}

std::string read_names(const json& value, std::vector<std::string>& into) {
  into.clear();
  if (!value.is_array()) return text("is ", value.dump(), ", a list of modules' names expected");
  for (const json& item : value) {
    if (std::string wrong = words(item, into.emplace_back()); !wrong.empty()) return wrong;
    if (into.back().empty()) return "has an empty name";
  }
  return "";
}

// As PEFT's target_modules: names, an expression, or the word for all.
std::string read_targets(const json& value, TrainConfig& config) {
  config.lora.targets.clear();
  config.lora.target_pattern.clear();
  if (value == "all-linear") return "";
  if (value.is_string()) {
    const std::string wrong = words(value, config.lora.target_pattern);
    return wrong.empty() && config.lora.target_pattern.empty() ? "is empty, \"all-linear\" expected" : wrong;
  }
  const std::string wrong = read_names(value, config.lora.targets);
  return wrong.empty() && config.lora.targets.empty() ? "is empty, at least one name expected" : wrong;
}

// Kept in every root with the rest of the config.
constexpr size_t kPromptsMostBytes = 16384;

std::string read_prompts(const json& value, TrainConfig& config) {
  config.samples.prompts.clear();
  if (!value.is_array() || value.empty()) return text("is ", value.dump(), ", a list of prompts expected");
  size_t bytes = 0;
  for (const json& item : value) {
    const Result<std::string> prompt = parse_prompt(item.dump());
    if (!prompt.ok()) return prompt.status().message();
    config.samples.prompts.push_back(*prompt);
    bytes += config.samples.prompts.back().size();
  }
  return bytes > kPromptsMostBytes ? text("has ", bytes, " B, at most ", kPromptsMostBytes, " expected") : "";
}

// Kept in every root, beside what rules leave out.
constexpr size_t kLeaveOutMost = 100;

std::string read_leave_out(const json& value, TrainConfig& config) {
  Result<LeftOut> batches = parse_left_out(value.dump());
  if (!batches.ok()) return batches.status().message();
  config.leave_out = *std::move(batches);
  const size_t runs = config.leave_out.runs().size();
  return runs > kLeaveOutMost ? text("has ", runs, " runs of batches, at most ", kLeaveOutMost, " expected") : "";
}

std::string read_action(const json& value, LossAction& into) {
  using enum LossAction;
  return choice<LossAction>(value,
                            {{name_of(ignore), ignore},
                             {name_of(stop), stop},
                             {name_of(skip), skip},
                             {name_of(lower_rate), lower_rate},
                             {name_of(rollback), rollback}},
                            into);
}

// Of what every root keeps.
constexpr uint32_t kWindowMost = 256, kActedMost = 100;

std::string count_from_to(const json& value, uint32_t least, uint32_t most, uint32_t& into) {
  const std::string wrong = whole(value, least, into);
  return wrong.empty() && into > most ? text("is ", value.dump(), ", at most ", most, " expected") : wrong;
}

std::string read_stores(const json& value, TrainConfig& config) {
  config.stores.clear();
  for (const json& item : value.is_array() ? value : json::array({value}))
    if (std::string wrong = words(item, config.stores.emplace_back()); !wrong.empty()) return wrong;
  return "";
}

// A drive that DeepSpeed's file names is used unless the file says where ours are.
std::string read_nvme_path(const json& value, TrainConfig& config) {
  std::string path;
  const std::string wrong = words(value, path);
  if (wrong.empty() && config.stores.empty()) config.stores.push_back(path);
  return wrong;
}

#define PENSTOCK_NUMBER(field, least, most) \
  [](const json& value, TrainConfig& config) { return number(value, least, most, config.field); }
#define PENSTOCK_WHOLE(field, least) \
  [](const json& value, TrainConfig& config) { return whole(value, least, config.field); }
#define PENSTOCK_FLAG(field) [](const json& value, TrainConfig& config) { return flag(value, config.field); }
#define PENSTOCK_WORDS(field) [](const json& value, TrainConfig& config) { return words(value, config.field); }
#define PENSTOCK_OPTIONAL_NUMBER(field) \
  [](const json& value, TrainConfig& config) { return number(value, 0, kMost, config.field.emplace()); }

using enum KeyFate;

constexpr const char* kPlanned = "the planner chooses by budgets: penstock.host_budget and so on";
constexpr const char* kNoFiles = "the run's log.jsonl has what there is";
constexpr const char* kProbed = "drives are measured, and the I/O engine is chosen by what they give";
constexpr const char* kOneRank = "one process has nothing to communicate";

const KeyRule kRules[] = {
    // Ours.
    {"model", honoured, "", PENSTOCK_WORDS(model)},
    {"from_scratch", honoured, "", PENSTOCK_FLAG(from_scratch)},
    {"data", honoured, "", read_data},
    {"token_bytes", honoured, "",
     [](const json& value, TrainConfig& config) {
       double bytes = 0;
       const std::string wrong = number(value, 0, 4, bytes);
       if (wrong.empty() && bytes != 0 && bytes != 1 && bytes != 2 && bytes != 4)
         return text("is ", bytes, "; 1, 2 or 4 expected");
       config.token_bytes = static_cast<uint32_t>(bytes);
       return wrong;
     }},
    {"sequence_length", honoured, "", PENSTOCK_WHOLE(sequence_length, 1)},
    {"held_out_share", honoured, "", PENSTOCK_NUMBER(held_out_share, 0, 0.99)},
    {"leave_out", honoured,
     "[3, [17, 20]]: batches, as log.jsonl numbers them, that nothing is learnt from; the next one takes the step",
     read_leave_out},
    {"eval_every", honoured, "", PENSTOCK_WHOLE(eval_every, 0)},
    {"eval_batches", honoured, "micro-batches of each set, at most; 0: all", PENSTOCK_WHOLE(eval_batches, 0)},
    {"early_stopping.patience", honoured, "evaluations without a better one, after which the run ends; 0: it goes on",
     PENSTOCK_WHOLE(early_stopping.evaluations, 0)},
    {"early_stopping.min_delta", honoured, "a loss that is lower by no more than this is no better",
     PENSTOCK_NUMBER(early_stopping.least_gain, 0, kMost)},
    {"loss_rules.not_finite", honoured,
     "what becomes of a batch whose loss or gradients are not finite: stop, skip, lower_rate, rollback or ignore",
     [](const json& value, TrainConfig& config) { return read_action(value, config.loss_rules.not_finite); }},
    {"loss_rules.spike", honoured, "the same of one whose loss jumps; ignore, where nothing is said",
     [](const json& value, TrainConfig& config) { return read_action(value, config.loss_rules.spike); }},
    {"loss_rules.window", honoured, "losses that a spike is measured by, the last ones; with fewer there is none",
     [](const json& value, TrainConfig& config) {
       return count_from_to(value, 2, kWindowMost, config.loss_rules.window);
     }},
    {"loss_rules.deviations", honoured,
     "that a spike is above their median; one is 1.4826 times their median distance from it, or 2 % of it",
     PENSTOCK_NUMBER(loss_rules.deviations, 0.1, 1e6)},
    {"loss_rules.rate_factor", honoured, "of lower_rate: what learning rates are multiplied by, each time",
     PENSTOCK_NUMBER(loss_rules.rate_factor, 0, 1)},
    {"loss_rules.rate_steps", honoured, "of lower_rate: steps that they stay so; 0: the rest of the run",
     PENSTOCK_WHOLE(loss_rules.rate_steps, 0)},
    {"loss_rules.at_most", honoured, "times in a run that batches are left out; then it stops",
     [](const json& value, TrainConfig& config) {
       return count_from_to(value, 1, kActedMost, config.loss_rules.at_most);
     }},
    {"sample_every", honoured, "steps after which samples.prompts are answered", PENSTOCK_WHOLE(sample_every, 0)},
    {"samples.prompts", honoured,
     "a string is asked by the chat template where there is one, {\"text\": ...} is continued, {\"messages\": [...]} is "
     "a chat",
     read_prompts},
    {"samples.file", honoured, "a file with more of them, one a line: JSON as in samples.prompts, or the words alone",
     PENSTOCK_WORDS(samples.file)},
    {"samples.tokenizer", honoured, "a folder of Hugging Face's; else the model's, or bytes", PENSTOCK_WORDS(samples.tokenizer)},
    {"samples.max_new_tokens", honoured, "", PENSTOCK_WHOLE(samples.max_new_tokens, 1)},
    {"samples.seed", honoured, "of what temperature draws; else the run's",
     [](const json& value, TrainConfig& config) { return whole(value, 0, config.samples.seed.emplace()); }},
    {"samples.temperature", honoured, "0: always the likeliest token", PENSTOCK_NUMBER(samples.rules.temperature, 0, 100)},
    {"samples.top_k", honoured, "of the likeliest; 0: all", PENSTOCK_WHOLE(samples.rules.top_k, 0)},
    {"samples.top_p", honoured, "the likeliest that have this share of the probability",
     PENSTOCK_NUMBER(samples.rules.top_p, 0, 1)},
    {"keep_every", honoured, "steps after which a snapshot of the store stays", PENSTOCK_WHOLE(keep_every, 0)},
    {"keep_best", honoured, "snapshots that stay, of the best evaluations", PENSTOCK_WHOLE(keep_best, 0)},
    {"seed", honoured, "", PENSTOCK_WHOLE(seed, 0)},
    {"max_steps", honoured, "", PENSTOCK_WHOLE(max_steps, 0)},
    {"epochs", honoured, "", PENSTOCK_NUMBER(epochs, 0, 1e9)},
    {"tf32", honoured, "of a GPU's products; the CPU has none", PENSTOCK_FLAG(tf32)},
    {"deterministic", honoured, "of a GPU's kernels; those of the CPU always are", PENSTOCK_FLAG(deterministic)},
    {"precision", honoured, "bf16, fp16 or fp32, as bf16.enabled and fp16.enabled say it",
     [](const json& value, TrainConfig& config) {
       return choice<Dtype>(value, {{"bf16", Dtype::bf16}, {"fp16", Dtype::fp16}, {"fp32", Dtype::fp32}},
                            config.precision);
     }},
    {"skip_overflow", honoured, "a step whose gradients are not finite changes nothing",
     [](const json& value, TrainConfig& config) { return flag(value, config.skip_overflow.emplace()); }},
    {"parameters", honoured, "learning rate, decay and freezing by name", read_rules},
    {"lora.rank", honoured, "adapters are trained, and the model's own weights frozen; 0: all weights are trained",
     [](const json& value, TrainConfig& config) {
       const std::string wrong = whole(value, 0, config.lora.rank);
       return wrong.empty() && config.lora.rank > kRankMax
                  ? text("is ", value.dump(), ", at most ", kRankMax, " expected")
                  : wrong;
     }},
    {"lora.alpha", honoured, "adapters count alpha / rank times; lora.rank where it is not said",
     [](const json& value, TrainConfig& config) { return number(value, 0, 1e9, config.lora.alpha.emplace()); }},
    {"lora.dropout", honoured, "of what goes into adapters", PENSTOCK_NUMBER(lora.dropout, 0, 0.999)},
    {"lora.rslora", honoured, "adapters count alpha / sqrt(rank) times", PENSTOCK_FLAG(lora.rslora)},
    {"lora.targets", honoured, "\"all-linear\", names as [\"q_proj\"], or an expression for modules' whole names",
     read_targets},
    {"lora.modules_to_save", honoured, "trained whole beside the adapters: embed_tokens, lm_head",
     [](const json& value, TrainConfig& config) { return read_names(value, config.lora.modules_to_save); }},
    {"lora.base", honoured, "what the blocks' frozen matrices rest in: nf4, int8, or bf16 for the precision's own type",
     [](const json& value, TrainConfig& config) {
       using Code = std::optional<BlockCode>;
       return choice<Code>(value, {{"bf16", Code()}, {"int8", BlockCode::int8}, {"nf4", BlockCode::nf4}},
                           config.lora.base);
     }},
    {"lora.adapter", honoured, "a folder of PEFT's whose adapters training begins with", PENSTOCK_WORDS(lora.adapter)},
    {"head_tokens", honoured, "", PENSTOCK_WHOLE(head_tokens, 0)},
    {"head_rows", honoured, "", PENSTOCK_WHOLE(head_rows, 0)},
    {"penstock.run", honoured, "folder of log.jsonl and config.json", PENSTOCK_WORDS(run)},
    {"penstock.weights", honoured, "",
     [](const json& value, TrainConfig& config) {
       return choice<std::string>(value, {{"auto", "auto"}, {"host", "host"}, {"nvme", "nvme"}}, config.weights);
     }},
    {"penstock.host_state_share", honoured, "",
     [](const json& value, TrainConfig& config) { return number(value, 0, 1, config.host_state_share.emplace()); }},
    {"penstock.threads", honoured, "that update; 0: one for each processor",
     [](const json& value, TrainConfig& config) {
       const std::string wrong = whole(value, 0, config.threads);
       return wrong.empty() && config.threads > kThreadsMax
                  ? text("is ", config.threads, ", at most ", kThreadsMax, " expected")
                  : wrong;
     }},
    {"penstock.io_engine", honoured, "",
     [](const json& value, TrainConfig& config) {
       return choice<std::string>(
           value, {{"auto", "auto"}, {"io_uring", "io_uring"}, {"libaio", "libaio"}, {"threads", "threads"}},
           config.io_engine);
     }},
    {"penstock.machine", honoured, "a profile of `penstock nvme probe`", PENSTOCK_WORDS(machine)},
    {"penstock.hangs_after_s", honoured, "of several ranks: without a sign of one, that all end and name it",
     PENSTOCK_NUMBER(hangs_after_s, 1, kMost)},
    {"penstock.device", honoured,
     "cpu computes in place, host in memory of its own as a GPU would, cuda or cuda:1 on a GPU, where several ranks have "
     "one each with cuda; auto: of one rank, the first GPU where one can be used, else host with a device_budget, else cpu",
     read_device},
    {"penstock.device_budget", honoured, "memory of penstock.device", PENSTOCK_WORDS(device_budget)},
    {"penstock.host_budget", honoured, "", PENSTOCK_WORDS(host_budget)},
    {"penstock.nvme_budget", honoured, "", PENSTOCK_WORDS(nvme_budget)},
    {"penstock.stores", honoured, "", read_stores},
    {"penstock.durability", honoured, "", PENSTOCK_WORDS(durability)},
    {"penstock.space", honoured, "",
     [](const json& value, TrainConfig& config) {
       return choice<std::string>(value, {{"double", "double"}, {"single", "single"}}, config.space);
     }},
    {"penstock.activations", honoured, "",
     [](const json& value, TrainConfig& config) {
       return choice<std::string>(value,
                                  {{"auto", "auto"},
                                   {"keep", "keep"},
                                   {"recompute", "recompute"},
                                   {"offload", "offload"},
                                   {"recompute_offload", "recompute_offload"}},
                                  config.activations);
     }},
    {"penstock.keep_share", honoured, "of the blocks, where the others recompute or offload",
     [](const json& value, TrainConfig& config) { return number(value, 0, 1, config.keep_share.emplace()); }},
    {"penstock.micro_batch_group", honoured, "", PENSTOCK_WHOLE(micro_batch_group, 0)},
    {"penstock.moments", honoured, "",
     [](const json& value, TrainConfig& config) {
       return choice<MomentForm>(
           value, {{"fp32", MomentForm::fp32}, {"bf16", MomentForm::bf16}, {"int8", MomentForm::int8}}, config.moments);
     }},

    // DeepSpeed's.
    {"train_batch_size", honoured, "", PENSTOCK_WHOLE(train_batch, 1)},
    {"train_micro_batch_size_per_gpu", honoured, "", PENSTOCK_WHOLE(micro_batch, 1)},
    {"gradient_accumulation_steps", honoured, "", PENSTOCK_WHOLE(accumulation, 1)},
    {"steps_per_print", honoured, "", PENSTOCK_WHOLE(steps_per_print, 1)},
    {"gradient_clipping", honoured, "exact, by the global norm", PENSTOCK_NUMBER(gradient_clipping, 0, kMost)},
    {"optimizer.type", honoured, "",
     [](const json& value, TrainConfig& config) {
       using enum OptimizerKind;
       return choice<OptimizerKind>(
           value, {{"AdamW", adamw}, {"Adam", adam}, {"Adagrad", adagrad}, {"Lion", lion}, {"SGD", sgd}},
           config.optimizer);
     }},
    {"optimizer.params.lr", honoured, "", PENSTOCK_NUMBER(hyper.lr, 0, 1e9)},
    {"optimizer.params.betas", honoured, "", read_betas},
    {"optimizer.params.eps", honoured, "", PENSTOCK_NUMBER(hyper.eps, 0, 1)},
    {"optimizer.params.weight_decay", honoured,
     "of matrices; norms and biases have none, unless a rule of `parameters` says so",
     PENSTOCK_NUMBER(hyper.weight_decay, 0, 1e9)},
    {"optimizer.params.momentum", honoured, "", PENSTOCK_NUMBER(hyper.momentum, 0, 1)},
    {"optimizer.params.dampening", honoured, "", PENSTOCK_NUMBER(hyper.dampening, 0, 1)},
    {"optimizer.params.nesterov", honoured, "", PENSTOCK_FLAG(hyper.nesterov)},
    {"optimizer.params.lr_decay", honoured, "", PENSTOCK_NUMBER(hyper.lr_decay, 0, 1e9)},
    {"optimizer.params.torch_adam", no_effect,
     "there is one implementation, and it computes what torch's fused one does"},
    {"optimizer.params.adam_w_mode", refused, "name the optimizer: AdamW, or Adam for decay that joins the gradient"},
    {"optimizer.params.bias_correction", refused, "the bias is always corrected"},
    {"optimizer.params.amsgrad", refused, "not offered"},
    {"optimizer.legacy_fusion", no_effect, "there is one implementation of each optimizer"},
    {"scheduler.type", honoured, "",
     [](const json& value, TrainConfig& config) {
       using enum ScheduleKind;
       return choice<ScheduleKind>(value,
                                   {{"LRRangeTest", lr_range_test},
                                    {"OneCycle", one_cycle},
                                    {"WarmupLR", warmup},
                                    {"WarmupDecayLR", warmup_decay},
                                    {"WarmupCosineLR", warmup_cosine},
                                    {"constant", constant},
                                    {"linear", linear},
                                    {"cosine", cosine}},
                                   config.schedule.kind);
     }},
    {"scheduler.params.warmup_steps", honoured, "constant, linear, cosine", PENSTOCK_WHOLE(schedule.warmup_steps, 0)},
    {"scheduler.params.total_steps", honoured, "linear, cosine", PENSTOCK_WHOLE(schedule.total_steps, 1)},
    {"scheduler.params.end_ratio", honoured, "linear, cosine", PENSTOCK_NUMBER(schedule.end_ratio, 0, 1)},
    {"scheduler.params.lr_range_test_min_lr", honoured, "", PENSTOCK_NUMBER(schedule.range_min_lr, 0, kMost)},
    {"scheduler.params.lr_range_test_step_size", honoured, "", PENSTOCK_NUMBER(schedule.range_step_size, 1, kMost)},
    {"scheduler.params.lr_range_test_step_rate", honoured, "", PENSTOCK_NUMBER(schedule.range_step_rate, 0, kMost)},
    {"scheduler.params.lr_range_test_staircase", honoured, "", PENSTOCK_FLAG(schedule.range_staircase)},
    {"scheduler.params.cycle_min_lr", honoured, "", PENSTOCK_NUMBER(schedule.cycle_min_lr, 0, kMost)},
    {"scheduler.params.cycle_max_lr", honoured, "", PENSTOCK_NUMBER(schedule.cycle_max_lr, 0, kMost)},
    {"scheduler.params.cycle_first_step_size", honoured, "", PENSTOCK_NUMBER(schedule.cycle_first_step_size, 1, kMost)},
    {"scheduler.params.cycle_second_step_size", honoured, "",
     PENSTOCK_OPTIONAL_NUMBER(schedule.cycle_second_step_size)},
    {"scheduler.params.cycle_first_stair_count", honoured, "", PENSTOCK_WHOLE(schedule.cycle_first_stair_count, 0)},
    {"scheduler.params.cycle_second_stair_count", honoured, "",
     [](const json& value, TrainConfig& config) {
       return whole(value, 0, config.schedule.cycle_second_stair_count.emplace());
     }},
    {"scheduler.params.decay_step_size", honoured, "", PENSTOCK_NUMBER(schedule.decay_step_size, 0, kMost)},
    {"scheduler.params.decay_lr_rate", honoured, "", PENSTOCK_NUMBER(schedule.decay_lr_rate, 0, kMost)},
    {"scheduler.params.cycle_momentum", honoured, "", PENSTOCK_FLAG(schedule.cycle_momentum)},
    {"scheduler.params.cycle_min_mom", honoured, "", PENSTOCK_NUMBER(schedule.cycle_min_mom, 0, 1)},
    {"scheduler.params.cycle_max_mom", honoured, "", PENSTOCK_NUMBER(schedule.cycle_max_mom, 0, 1)},
    {"scheduler.params.decay_mom_rate", honoured, "", PENSTOCK_NUMBER(schedule.decay_mom_rate, 0, kMost)},
    {"scheduler.params.warmup_min_lr", honoured, "", PENSTOCK_NUMBER(schedule.warmup_min_lr, 0, kMost)},
    {"scheduler.params.warmup_max_lr", honoured, "", PENSTOCK_OPTIONAL_NUMBER(schedule.warmup_max_lr)},
    {"scheduler.params.warmup_num_steps", honoured, "", PENSTOCK_WHOLE(schedule.warmup_num_steps, 1)},
    {"scheduler.params.warmup_type", honoured, "",
     [](const json& value, TrainConfig& config) {
       return choice<WarmupType>(value, {{"log", WarmupType::log}, {"linear", WarmupType::linear}},
                                 config.schedule.warmup_type);
     }},
    {"scheduler.params.total_num_steps", honoured, "", PENSTOCK_WHOLE(schedule.total_num_steps, 1)},
    {"scheduler.params.warmup_min_ratio", honoured, "", PENSTOCK_NUMBER(schedule.warmup_min_ratio, 0, 1)},
    {"scheduler.params.cos_min_ratio", honoured, "", PENSTOCK_NUMBER(schedule.cos_min_ratio, 0, 1)},
    {"scheduler.params.last_batch_iteration", no_effect, "the store knows the step"},
    {"fp16.enabled", honoured, "",
     [](const json& value, TrainConfig& config) { return precision(value, config, Dtype::fp16); }},
    {"fp16.loss_scale", honoured, "", PENSTOCK_NUMBER(loss_scaling.scale, 0, kMost)},
    {"fp16.initial_scale_power", honoured, "",
     [](const json& value, TrainConfig& config) {
       constexpr uint32_t kPowerMax = 100;
       const std::string wrong = whole(value, 0, config.loss_scaling.initial_scale_power);
       return wrong.empty() && config.loss_scaling.initial_scale_power > kPowerMax
                  ? text("is ", value.dump(), ", at most ", kPowerMax, " expected")
                  : wrong;
     }},
    {"fp16.loss_scale_window", honoured, "", PENSTOCK_WHOLE(loss_scaling.window, 1)},
    {"fp16.hysteresis", honoured, "", PENSTOCK_WHOLE(loss_scaling.hysteresis, 1)},
    {"fp16.consecutive_hysteresis", honoured, "", PENSTOCK_FLAG(loss_scaling.consecutive_hysteresis)},
    {"fp16.min_loss_scale", honoured, "", PENSTOCK_NUMBER(loss_scaling.least, 1e-30, kMost)},
    {"fp16.auto_cast", no_effect, "inputs are tokens"},
    {"fp16.fp16_master_weights_and_grads", refused, "masters are fp32; use penstock.moments to save memory"},
    {"bf16.enabled", honoured, "false without fp16: all is fp32",
     [](const json& value, TrainConfig& config) { return precision(value, config, Dtype::bf16); }},
    {"bf16.immediate_grad_update", no_effect, "gradients are always consumed as they come"},
    {"bf16.check_grad_overflow", honoured, "the same as skip_overflow",
     [](const json& value, TrainConfig& config) { return flag(value, config.skip_overflow.emplace()); }},
    {"bf16.bf16_master_weights_and_grads", refused, "masters are fp32; use penstock.moments to save memory"},
    {"bf16.bf16_optimizer_states", honoured, "the same as penstock.moments bf16",
     [](const json& value, TrainConfig& config) {
       bool on = false;
       const std::string wrong = flag(value, on);
       if (on) config.moments = MomentForm::bf16;
       return wrong;
     }},
    {"data_types.grad_accum_dtype", no_effect, "gradients are always added up in fp32"},
    {"communication_data_type", no_effect, kOneRank},
    {"prescale_gradients", no_effect, kOneRank},
    {"gradient_predivide_factor", no_effect, kOneRank},
    {"gradient_allreduce_op", no_effect, kOneRank},
    {"sparse_gradients", no_effect, "gradients are dense"},
    {"disable_allgather", no_effect, kOneRank},
    {"zero_allow_untested_optimizer", no_effect, "every optimizer offered is tested"},
    {"zero_force_ds_cpu_optimizer", no_effect, "there is one implementation of each optimizer"},
    {"zero_optimization.offload_optimizer.nvme_path", honoured, "a store, where penstock.stores names none",
     read_nvme_path},
    {"zero_optimization.offload_param.nvme_path", honoured, "a store, where penstock.stores names none",
     read_nvme_path},
    {"zero_optimization.offload_optimizer.super_offload", no_effect, "updates are always speculative, and exact"},
    {"zero_optimization.offload_optimizer.device", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.buffer_count", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.pin_memory", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.pipeline", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.pipeline_read", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.pipeline_write", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.fast_init", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.ratio", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer.max_in_cpu", no_effect, kPlanned},
    {"zero_optimization.offload_optimizer", no_effect, kPlanned},
    {"zero_optimization.offload_param.device", no_effect, kPlanned},
    {"zero_optimization.offload_param.buffer_count", no_effect, kPlanned},
    {"zero_optimization.offload_param.buffer_size", no_effect, kPlanned},
    {"zero_optimization.offload_param.max_in_cpu", no_effect, kPlanned},
    {"zero_optimization.offload_param.pin_memory", no_effect, kPlanned},
    {"zero_optimization.offload_param", no_effect, kPlanned},
    {"zero_optimization.zero_quantized_weights", honoured,
     "several ranks gather weights in int8, and compute with what that stands for", PENSTOCK_FLAG(codes.weights)},
    {"zero_optimization.zero_quantized_nontrainable_weights", honoured, "the same of frozen weights alone",
     PENSTOCK_FLAG(codes.frozen_weights)},
    {"zero_optimization.zero_quantized_gradients", honoured,
     "several ranks send their gradients in int4 to the one that adds them up", PENSTOCK_FLAG(codes.gradients)},
    {"zero_optimization.zenflow", refused, "it trains on old gradients; updates are hidden without that here"},
    {"zero_optimization.zenflow.*", refused, "it trains on old gradients; updates are hidden without that here"},
    {"zero_optimization.zeropp_loco_param.*", refused,
     "what int4 loses of a gradient is not kept for the next step; zero_quantized_gradients alone"},
    {"zero_optimization.stage", honoured, "what each of several ranks keeps; where nothing is said, the fastest that fits; changes no bit",
     [](const json& value, TrainConfig& config) { return stage(value, config.zero_stage.emplace()); }},
    {"zero_optimization.contiguous_gradients", no_effect, kPlanned},
    {"zero_optimization.reduce_scatter", no_effect, kPlanned},
    {"zero_optimization.reduce_bucket_size", no_effect, kPlanned},
    {"zero_optimization.use_multi_rank_bucket_allreduce", no_effect, kPlanned},
    {"zero_optimization.allgather_partitions", no_effect, kPlanned},
    {"zero_optimization.allgather_bucket_size", no_effect, kPlanned},
    {"zero_optimization.overlap_comm", no_effect, kPlanned},
    {"zero_optimization.load_from_fp32_weights", no_effect, kPlanned},
    {"zero_optimization.elastic_checkpoint", no_effect, kPlanned},
    {"zero_optimization.sub_group_size", no_effect, kPlanned},
    {"zero_optimization.cpu_offload", no_effect, kPlanned},
    {"zero_optimization.cpu_offload_param", no_effect, kPlanned},
    {"zero_optimization.cpu_offload_params", no_effect, kPlanned},
    {"zero_optimization.cpu_offload_use_pin_memory", no_effect, kPlanned},
    {"zero_optimization.stage3_max_live_parameters", no_effect, kPlanned},
    {"zero_optimization.stage3_max_reuse_distance", no_effect, kPlanned},
    {"zero_optimization.stage3_prefetch_bucket_size", no_effect, kPlanned},
    {"zero_optimization.stage3_param_persistence_threshold", no_effect, kPlanned},
    {"zero_optimization.stage3_model_persistence_threshold", no_effect, kPlanned},
    {"zero_optimization.stage3_module_granularity_threshold", no_effect, kPlanned},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", no_effect, kPlanned},
    {"zero_optimization.stage3_allgather_sequential", no_effect, kPlanned},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", no_effect, kPlanned},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", no_effect, kPlanned},
    {"zero_optimization.ignore_unused_parameters", no_effect, kPlanned},
    {"zero_optimization.legacy_stage1", no_effect, kPlanned},
    {"zero_optimization.round_robin_gradients", no_effect, kPlanned},
    {"zero_optimization.zero_hpz_partition_size", honoured,
     "the same as mics_shard_size: a node keeps its copy of the state too; 1: not asked for",
     [](const json& value, TrainConfig& config) { return value == 1 ? "" : shard_ranks(value, config); }},
    {"zero_optimization.mics_shard_size", honoured,
     "ranks, neighbours, that share one copy of the model and its state, those of a node for instance; 0: all",
     [](const json& value, TrainConfig& config) {
       // DeepSpeed's -1: not asked for.
       return value == -1 ? "" : shard_ranks(value, config);
     }},
    {"zero_optimization.mics_hierarchical_params_gather", no_effect, kPlanned},
    {"zero_optimization.memory_efficient_linear", no_effect, kPlanned},
    {"zero_optimization.pipeline_loading_checkpoint", no_effect, kPlanned},
    {"zero_optimization.override_module_apply", no_effect, kPlanned},
    {"zero_optimization.log_trace_cache_warnings", no_effect, kPlanned},
    {"zero_optimization.leaf_module.*", no_effect, kPlanned},
    {"zero_optimization", no_effect, kPlanned},
    {"aio.*", no_effect, kProbed},
    {"activation_checkpointing.*", no_effect, "the planner chooses by unit; penstock.activations overrides it"},
    {"checkpoint.*", no_effect, "the store is the checkpoint; `penstock checkpoint export` writes safetensors"},
    {"data_efficiency.*", refused, "not offered"},
    {"wall_clock_breakdown", no_effect, kNoFiles},
    {"dump_state", no_effect, kNoFiles},
    {"memory_breakdown", no_effect, kNoFiles},
    {"flops_profiler.*", no_effect, kNoFiles},
    {"comms_logger.*", no_effect, kNoFiles},
    {"tensorboard.*", no_effect, kNoFiles},
    {"wandb.*", no_effect, kNoFiles},
    {"comet.*", no_effect, kNoFiles},
    {"csv_monitor.*", no_effect, kNoFiles},
    {"autotuning.*", no_effect, "the planner chooses by measured rates"},
    {"dataloader_drop_last", no_effect, "samples are drawn endlessly"},
    {"amp.*", refused, "use bf16.enabled or fp16.enabled"},
    {"torch_autocast.*", refused, "use bf16.enabled or fp16.enabled"},
    {"elasticity.*", refused, "give the batch as micro-batch and accumulation"},
    {"sparse_attention.*", refused, "models compute the attention of their config.json"},
    {"curriculum_learning.*", refused, "not offered"},
    {"progressive_layer_drop.*", refused, "not offered"},
    {"compression_training.*", refused, "not offered"},
    {"quantize_training.*", refused, "not offered"},
    {"hybrid_engine.*", refused, "not offered"},
    {"eigenvalue.*", refused, "not offered"},
    {"tensor_parallel.*", refused, "not offered"},
    {"pipeline.*", refused, "not offered"},
};

}  // namespace

std::span<const KeyRule> config_rules() { return kRules; }

Result<std::string> parse_prompt(const std::string& written) {
  const json item = json::parse(written, nullptr, /*allow_exceptions=*/false);
  const bool is_object = item.is_object() && item.size() == 1;
  const bool is_text = is_object && item.contains("text") && item["text"].is_string();
  const bool is_chat = is_object && item.contains("messages") && item["messages"].is_array();
  if (item.is_string() || is_text || is_chat) return item.dump();
  return Status(Code::kUsage, text("has ", item.is_discarded() ? written.substr(0, 100) : item.dump(),
                                   "; a string, {\"text\": ...} or {\"messages\": [...]} expected"));
}

}  // namespace penstock::trainer
