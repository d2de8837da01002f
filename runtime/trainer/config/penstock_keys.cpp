// Penstock's own keys, with what is read in a way of its own.
#include "cpu_optim/update_workers.h"
#include "runtime/trainer/config/key_rule_macros.h"
#include "runtime/trainer/config/sample_prompt.h"

namespace penstock::trainer {
namespace {

using json = nlohmann::ordered_json;
using enum KeyFate;

constexpr uint32_t kThreadsMax = cpu_optim::UpdateWorkersOptions::kThreadsMax;
constexpr uint32_t kRankMax = 65536;

std::string read_device(const json& value, TrainConfig& config) {
  if (const std::string wrong = read_words(value, config.device); !wrong.empty()) return wrong;
  const std::string& device = config.device;
  if (device == "auto" || device == "cpu" || device == "host" || device == "cuda") return "";
  const bool has_number = device.starts_with("cuda:") && device.size() > 5 && device.size() <= 8 &&
                          device.find_first_not_of("0123456789", 5) == std::string::npos;
  return has_number ? "" : text("is ", value.dump(), ", one of these expected: auto, cpu, host, cuda, cuda:N");
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
          if (std::string wrong = read_number(of_key, 1e-6, 1e12, file.weight); !wrong.empty())
            return "weight " + wrong;
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
        wrong = read_words(setting, rule.pattern);
      else if (key == "lr")
        wrong = read_number(setting, 0, kNoLimit, rule.lr.emplace());
      else if (key == "weight_decay")
        wrong = read_number(setting, 0, kNoLimit, rule.weight_decay.emplace());
      else if (key == "frozen")
        wrong = read_flag(setting, rule.frozen);
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
    if (std::string wrong = read_words(item, into.emplace_back()); !wrong.empty()) return wrong;
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
    const std::string wrong = read_words(value, config.lora.target_pattern);
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
  return read_choice<LossAction>(value,
                                 {{name_of(ignore), ignore},
                                  {name_of(stop), stop},
                                  {name_of(skip), skip},
                                  {name_of(lower_rate), lower_rate},
                                  {name_of(rollback), rollback}},
                                 into);
}

// Of what every root keeps.
constexpr uint32_t kWindowMost = 256, kActedMost = 100;

std::string read_stores(const json& value, TrainConfig& config) {
  config.stores.clear();
  for (const json& item : value.is_array() ? value : json::array({value}))
    if (std::string wrong = read_words(item, config.stores.emplace_back()); !wrong.empty()) return wrong;
  return "";
}

const KeyRule kRules[] = {
    {"model", honoured, "", PENSTOCK_WORDS(model)},
    {"from_scratch", honoured, "", PENSTOCK_FLAG(from_scratch)},
    {"data", honoured, "", read_data},
    {"token_bytes", honoured, "",
     [](const json& value, TrainConfig& config) {
       double bytes = 0;
       const std::string wrong = read_number(value, 0, 4, bytes);
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
     PENSTOCK_NUMBER(early_stopping.least_gain, 0, kNoLimit)},
    {"loss_rules.not_finite", honoured,
     "what becomes of a batch whose loss or gradients are not finite: stop, skip, lower_rate, rollback or ignore",
     [](const json& value, TrainConfig& config) { return read_action(value, config.loss_rules.not_finite); }},
    {"loss_rules.spike", honoured, "the same of one whose loss jumps; ignore, where nothing is said",
     [](const json& value, TrainConfig& config) { return read_action(value, config.loss_rules.spike); }},
    {"loss_rules.window", honoured, "losses that a spike is measured by, the last ones; with fewer there is none",
     [](const json& value, TrainConfig& config) {
       return read_whole_up_to(value, 2, kWindowMost, config.loss_rules.window);
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
       return read_whole_up_to(value, 1, kActedMost, config.loss_rules.at_most);
     }},
    {"sample_every", honoured, "steps after which samples.prompts are answered", PENSTOCK_WHOLE(sample_every, 0)},
    {"samples.prompts", honoured,
     "a string is asked by the chat template where there is one, {\"text\": ...} is continued, {\"messages\": [...]} "
     "is "
     "a chat",
     read_prompts},
    {"samples.file", honoured, "a file with more of them, one a line: JSON as in samples.prompts, or the words alone",
     PENSTOCK_WORDS(samples.file)},
    {"samples.tokenizer", honoured, "a folder of Hugging Face's; else the model's, or bytes",
     PENSTOCK_WORDS(samples.tokenizer)},
    {"samples.max_new_tokens", honoured, "", PENSTOCK_WHOLE(samples.max_new_tokens, 1)},
    {"samples.seed", honoured, "of what temperature draws; else the run's",
     [](const json& value, TrainConfig& config) { return read_whole(value, 0, config.samples.seed.emplace()); }},
    {"samples.temperature", honoured, "0: always the likeliest token",
     PENSTOCK_NUMBER(samples.rules.temperature, 0, 100)},
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
       return read_choice<Dtype>(value, {{"bf16", Dtype::bf16}, {"fp16", Dtype::fp16}, {"fp32", Dtype::fp32}},
                                 config.precision);
     }},
    {"skip_overflow", honoured, "a step whose gradients are not finite changes nothing",
     [](const json& value, TrainConfig& config) { return read_flag(value, config.skip_overflow.emplace()); }},
    {"parameters", honoured, "learning rate, decay and freezing by name", read_rules},
    {"lora.rank", honoured, "adapters are trained, and the model's own weights frozen; 0: all weights are trained",
     [](const json& value, TrainConfig& config) { return read_whole_up_to(value, 0, kRankMax, config.lora.rank); }},
    {"lora.alpha", honoured, "adapters count alpha / rank times; lora.rank where it is not said",
     [](const json& value, TrainConfig& config) { return read_number(value, 0, 1e9, config.lora.alpha.emplace()); }},
    {"lora.dropout", honoured, "of what goes into adapters", PENSTOCK_NUMBER(lora.dropout, 0, 0.999)},
    {"lora.rslora", honoured, "adapters count alpha / sqrt(rank) times", PENSTOCK_FLAG(lora.rslora)},
    {"lora.targets", honoured, "\"all-linear\", names as [\"q_proj\"], or an expression for modules' whole names",
     read_targets},
    {"lora.modules_to_save", honoured, "trained whole beside the adapters: embed_tokens, lm_head",
     [](const json& value, TrainConfig& config) { return read_names(value, config.lora.modules_to_save); }},
    {"lora.base", honoured, "what the blocks' frozen matrices rest in: nf4, int8, or bf16 for the precision's own type",
     [](const json& value, TrainConfig& config) {
       using Code = std::optional<BlockCode>;
       return read_choice<Code>(value, {{"bf16", Code()}, {"int8", BlockCode::int8}, {"nf4", BlockCode::nf4}},
                                config.lora.base);
     }},
    {"lora.adapter", honoured, "a folder of PEFT's whose adapters training begins with", PENSTOCK_WORDS(lora.adapter)},
    {"head_tokens", honoured, "", PENSTOCK_WHOLE(head_tokens, 0)},
    {"head_rows", honoured, "", PENSTOCK_WHOLE(head_rows, 0)},
    {"penstock.run", honoured, "folder of log.jsonl and config.json", PENSTOCK_WORDS(run)},
    {"penstock.weights", honoured, "",
     [](const json& value, TrainConfig& config) {
       return read_choice<std::string>(value, {{"auto", "auto"}, {"host", "host"}, {"nvme", "nvme"}}, config.weights);
     }},
    {"penstock.host_state_share", honoured, "",
     [](const json& value, TrainConfig& config) {
       return read_number(value, 0, 1, config.host_state_share.emplace());
     }},
    {"penstock.device_share", honoured, "of the blocks, that rest on the device and are updated there",
     [](const json& value, TrainConfig& config) { return read_number(value, 0, 1, config.device_share.emplace()); }},
    {"penstock.threads", honoured, "that update; 0: one for each processor",
     [](const json& value, TrainConfig& config) {
       const std::string wrong = read_whole(value, 0, config.threads);
       return wrong.empty() && config.threads > kThreadsMax
                  ? text("is ", config.threads, ", at most ", kThreadsMax, " expected")
                  : wrong;
     }},
    {"penstock.io_engine", honoured, "",
     [](const json& value, TrainConfig& config) {
       return read_choice<std::string>(
           value, {{"auto", "auto"}, {"io_uring", "io_uring"}, {"libaio", "libaio"}, {"threads", "threads"}},
           config.io_engine);
     }},
    {"penstock.machine", honoured, "a profile of `penstock nvme probe`", PENSTOCK_WORDS(machine)},
    {"penstock.hangs_after_s", honoured, "of several ranks: without a sign of one, that all end and name it",
     PENSTOCK_NUMBER(hangs_after_s, 1, kNoLimit)},
    {"penstock.device", honoured,
     "cpu computes in place, host in memory of its own as a GPU would, cuda or cuda:1 on a GPU, where several ranks "
     "have "
     "one each with cuda; auto: of one rank, the first GPU where one can be used, else host with a device_budget, else "
     "cpu",
     read_device},
    {"penstock.device_budget", honoured, "memory of penstock.device", PENSTOCK_WORDS(device_budget)},
    {"penstock.host_budget", honoured, "", PENSTOCK_WORDS(host_budget)},
    {"penstock.nvme_budget", honoured, "", PENSTOCK_WORDS(nvme_budget)},
    {"penstock.stores", honoured, "", read_stores},
    {"penstock.durability", honoured, "", PENSTOCK_WORDS(durability)},
    {"penstock.space", honoured, "",
     [](const json& value, TrainConfig& config) {
       return read_choice<std::string>(value, {{"double", "double"}, {"single", "single"}}, config.space);
     }},
    {"penstock.activations", honoured, "",
     [](const json& value, TrainConfig& config) {
       return read_choice<std::string>(value,
                                       {{"auto", "auto"},
                                        {"keep", "keep"},
                                        {"recompute", "recompute"},
                                        {"offload", "offload"},
                                        {"recompute_offload", "recompute_offload"}},
                                       config.activations);
     }},
    {"penstock.keep_share", honoured, "of the blocks, where the others recompute or offload",
     [](const json& value, TrainConfig& config) { return read_number(value, 0, 1, config.keep_share.emplace()); }},
    {"penstock.micro_batch_group", honoured, "", PENSTOCK_WHOLE(micro_batch_group, 0)},
    {"penstock.moments", honoured, "",
     [](const json& value, TrainConfig& config) {
       return read_choice<MomentForm>(
           value, {{"fp32", MomentForm::fp32}, {"bf16", MomentForm::bf16}, {"int8", MomentForm::int8}}, config.moments);
     }},
};

}  // namespace

std::span<const KeyRule> penstock_keys() { return kRules; }

}  // namespace penstock::trainer
