// The config that a run follows, written down: nothing is lost, and nothing else than what was said is in it.
#include "runtime/trainer/config/effective_config.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace penstock::trainer {
namespace {

using nlohmann::json;

// A value of each honoured key that is not its default. Keys of one kind of optimizer or schedule stand with it.
const std::map<std::string, std::vector<std::pair<const char*, const char*>>>& said() {
  static const std::map<std::string, std::vector<std::pair<const char*, const char*>>> keys = {
      {"",
       {{"model", R"("/models/x")"},
        {"from_scratch", "true"},
        {"data", R"([{"path": "a.bin", "weight": 3.0}])"},
        {"token_bytes", "4"},
        {"sequence_length", "77"},
        {"held_out_share", "0.25"},
        {"leave_out", "[3, [17, 20]]"},
        {"eval_every", "5"},
        {"early_stopping.patience", "4"},
        {"early_stopping.min_delta", "0.125"},
        {"loss_rules.not_finite", R"("skip")"},
        {"loss_rules.spike", R"("lower_rate")"},
        {"loss_rules.window", "9"},
        {"loss_rules.deviations", "3.5"},
        {"loss_rules.rate_factor", "0.75"},
        {"loss_rules.rate_steps", "40"},
        {"loss_rules.at_most", "4"},
        {"sample_every", "13"},
        {"samples.prompts", R"(["a", {"text": "b"}, {"messages": [{"role": "user", "content": "c"}]}])"},
        {"samples.file", R"("prompts.jsonl")"},
        {"samples.seed", "21"},
        {"samples.tokenizer", R"("/tokenizers/x")"},
        {"samples.max_new_tokens", "33"},
        {"samples.temperature", "0.5"},
        {"samples.top_k", "7"},
        {"samples.top_p", "0.75"},
        {"keep_every", "15"},
        {"keep_best", "2"},
        {"zero_optimization.stage", "2"},
        {"zero_optimization.mics_shard_size", "4"},
        {"zero_optimization.zero_quantized_weights", "true"},
        {"zero_optimization.zero_quantized_nontrainable_weights", "true"},
        {"zero_optimization.zero_quantized_gradients", "true"},
        {"penstock.hangs_after_s", "30"},
        {"eval_batches", "6"},
        {"seed", "7"},
        {"max_steps", "8"},
        {"epochs", "2.5"},
        {"steps_per_print", "9"},
        {"train_batch_size", "12"},
        {"train_micro_batch_size_per_gpu", "3"},
        {"gradient_accumulation_steps", "4"},
        {"tf32", "true"},
        {"deterministic", "false"},
        {"precision", R"("fp32")"},
        {"skip_overflow", "false"},
        {"gradient_clipping", "0.5"},
        {"parameters", R"([{"pattern": "a*b", "lr": 0.5, "weight_decay": 0.0, "frozen": true}])"},
        {"lora.rank", "4"},
        {"lora.alpha", "6.0"},
        {"lora.dropout", "0.25"},
        {"lora.rslora", "true"},
        {"lora.targets", R"(["q_proj", "v_proj"])"},
        {"lora.modules_to_save", R"(["lm_head"])"},
        {"lora.base", R"("nf4")"},
        {"lora.adapter", R"("/adapters/x")"},
        {"head_tokens", "10"},
        {"head_rows", "11"},
        {"penstock.run", R"("/run")"},
        {"penstock.device", R"("cuda:1")"},
        {"penstock.device_budget", R"("1GiB")"},
        {"penstock.host_budget", R"("2GiB")"},
        {"penstock.nvme_budget", R"("3GiB")"},
        {"penstock.stores", R"(["/a", "/b"])"},
        {"penstock.durability", R"("every:3")"},
        {"penstock.space", R"("single")"},
        {"penstock.activations", R"("keep")"},
        {"penstock.keep_share", "0.5"},
        {"penstock.micro_batch_group", "2"},
        {"penstock.weights", R"("host")"},
        {"penstock.host_state_share", "0.5"},
        {"penstock.device_share", "0.5"},
        {"penstock.moments", R"("int8")"},
        {"penstock.threads", "3"},
        {"penstock.io_engine", R"("libaio")"},
        {"penstock.machine", R"("m.json")"}}},
      {"fp16",
       {{"precision", R"("fp16")"},
        {"fp16.loss_scale", "128.0"},
        {"fp16.initial_scale_power", "12"},
        {"fp16.loss_scale_window", "50"},
        {"fp16.hysteresis", "3"},
        {"fp16.consecutive_hysteresis", "true"},
        {"fp16.min_loss_scale", "0.5"}}},
      {"Adam",
       {{"optimizer.params.lr", "0.125"},
        {"optimizer.params.betas", "[0.5, 0.75]"},
        {"optimizer.params.eps", "0.001"},
        {"optimizer.params.weight_decay", "0.25"}}},
      {"SGD",
       {{"optimizer.params.momentum", "0.5"},
        {"optimizer.params.dampening", "0.0"},
        {"optimizer.params.nesterov", "true"}}},
      {"Adagrad", {{"optimizer.params.lr_decay", "0.5"}}},
      {"cosine",
       {{"scheduler.params.warmup_steps", "2"},
        {"scheduler.params.total_steps", "20"},
        {"scheduler.params.end_ratio", "0.5"}}},
      {"LRRangeTest",
       {{"scheduler.params.lr_range_test_min_lr", "0.5"},
        {"scheduler.params.lr_range_test_step_size", "3.0"},
        {"scheduler.params.lr_range_test_step_rate", "4.0"},
        {"scheduler.params.lr_range_test_staircase", "true"}}},
      {"OneCycle",
       {{"scheduler.params.cycle_min_lr", "0.25"},
        {"scheduler.params.cycle_max_lr", "0.5"},
        {"scheduler.params.cycle_first_step_size", "3.0"},
        {"scheduler.params.cycle_second_step_size", "4.0"},
        {"scheduler.params.cycle_first_stair_count", "5"},
        {"scheduler.params.cycle_second_stair_count", "6"},
        {"scheduler.params.decay_step_size", "7.0"},
        {"scheduler.params.decay_lr_rate", "0.5"},
        {"scheduler.params.cycle_momentum", "false"},
        {"scheduler.params.cycle_min_mom", "0.5"},
        {"scheduler.params.cycle_max_mom", "0.75"},
        {"scheduler.params.decay_mom_rate", "0.25"}}},
      {"WarmupDecayLR",
       {{"scheduler.params.warmup_min_lr", "0.25"},
        {"scheduler.params.warmup_max_lr", "0.5"},
        {"scheduler.params.warmup_num_steps", "3"},
        {"scheduler.params.warmup_type", R"("linear")"},
        {"scheduler.params.total_num_steps", "30"}}},
      {"WarmupCosineLR", {{"scheduler.params.warmup_min_ratio", "0.5"}, {"scheduler.params.cos_min_ratio", "0.25"}}},
  };
  return keys;
}

json at(const json& file, const std::string& key) {
  std::string pointer = "/" + key;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return file.value(json::json_pointer(pointer), json());
}

TrainConfig config_saying(const std::string& kind, const std::vector<ConfigOverride>& keys) {
  std::string file = "{}";
  if (kind == "Adam" || kind == "SGD" || kind == "Adagrad") {
    file = R"({"optimizer": {"type": ")" + kind + R"(", "params": {"momentum": 0.25}}})";
  } else if (kind == "OneCycle") {
    file = R"({"scheduler": {"type": "OneCycle", "params": {"cycle_max_lr": 1}}})";
  } else if (!kind.empty() && kind != "fp16") {
    file = R"({"max_steps": 40, "scheduler": {"type": ")" + kind + R"("}})";
  }
  const auto parsed = parse_config(file, keys);
  EXPECT_TRUE(parsed.ok()) << kind << ": " << parsed.status().message();
  return parsed.ok() ? *parsed : TrainConfig();
}

TEST(EffectiveConfig, HasEveryHonouredKeyAndIsReadAsItWasWritten) {
  std::map<std::string, bool> known;
  for (const CheckedKey& key : known_keys())
    if (key.fate == KeyFate::honoured) known[key.key] = false;
  // What says the same by another key.
  for (const char* other :
       {"bf16.enabled", "fp16.enabled", "bf16.bf16_optimizer_states", "bf16.check_grad_overflow",
        "zero_optimization.offload_optimizer.nvme_path", "zero_optimization.offload_param.nvme_path", "optimizer.type",
        "scheduler.type", "zero_optimization.zero_hpz_partition_size"})
    known[other] = true;
  for (const auto& [kind, keys] : said()) {
    const json without = json::parse(effective_json(config_saying(kind, {})));
    std::vector<ConfigOverride> all;
    for (const auto& [key, value] : keys) all.push_back({key, value});
    const TrainConfig config = config_saying(kind, all);
    const std::string written = effective_json(config);
    const json file = json::parse(written);
    for (const auto& [key, value] : keys) {
      EXPECT_EQ(at(file, key), json::parse(value)) << kind << " " << key;
      if (std::string(key) != "optimizer.params.dampening") {
        EXPECT_NE(at(without, key), json::parse(value)) << key << ": this is the default; try another value";
      }
      known[key] = true;
    }
    const auto again = parse_config(written);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(effective_json(*again), written);
  }
  for (const auto& [key, was_tried] : known) EXPECT_TRUE(was_tried) << key;
}

// What changes bits is a store's: it is not gone on with otherwise.
TEST(EffectiveConfig, IsAnotherRunWithOtherCodes) {
  std::set<std::string> identities;
  for (const char* key : {"weights", "nontrainable_weights", "gradients"}) {
    for (const char* on : {"true", "false"}) {
      const auto config = parse_config(text(R"({"zero_optimization": {"zero_quantized_)", key, "\": ", on, "}}"));
      ASSERT_TRUE(config.ok()) << config.status().message();
      identities.insert(config_identity(*config));
    }
  }
  EXPECT_EQ(identities.size(), 4u);
  EXPECT_TRUE(identities.contains(config_identity(TrainConfig())));
}

TEST(EffectiveConfig, IsAnotherRunWhereAdaptersCountOtherwise) {
  std::set<std::string> identities = {config_identity(TrainConfig())};
  for (const char* lora : {R"("rank": 4)", R"("rank": 8)", R"("rank": 4, "alpha": 8)", R"("rank": 4, "rslora": true)",
                           R"("rank": 4, "dropout": 0.5)"}) {
    const auto config = parse_config(text(R"({"lora": {)", lora, "}}"));
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_TRUE(identities.insert(config_identity(*config)).second) << lora;
  }
  const auto same = parse_config(R"({"lora": {"rank": 4, "alpha": 4}})");  // which is what is meant where none is said
  EXPECT_TRUE(identities.contains(config_identity(*same)));
}

TEST(EffectiveConfig, NamesWhatChanged) {
  TrainConfig config;
  const std::string before = effective_json(config);
  config.hyper.lr = 0.5;
  config.stores = {"/a"};
  EXPECT_EQ(
      changed_keys(before, effective_json(config)),
      (std::vector<std::string>{"optimizer.params.lr: 0.001, now 0.5", "penstock.stores: not said, now [\"/a\"]"}));
  EXPECT_EQ(
      changed_keys(effective_json(config), before),
      (std::vector<std::string>{"optimizer.params.lr: 0.5, now 0.001", "penstock.stores: [\"/a\"], now not said"}));
  EXPECT_TRUE(changed_keys(before, before).empty());
}

TEST(TrainConfig, OverridesCountInsteadOfTheFile) {
  const auto config = parse_config(R"({"optimizer": {"params": {"lr": 1, "eps": 0.5}}, "max_steps": 3, "seed": 4})",
                                   {{"optimizer.params.lr", "2"}, {"max_steps", "5"}, {"penstock.threads", "6"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->hyper.lr, 2);
  EXPECT_EQ(config->hyper.eps, 0.5);
  EXPECT_EQ(config->max_steps, 5u);
  EXPECT_EQ(config->seed, 4u);
  EXPECT_EQ(config->threads, 6u);
  const auto refused = parse_config(R"({"optimizer": 3})", {{"optimizer.params.lr", "2"}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("optimizer"), std::string::npos) << refused.status().message();
}

TEST(TrainConfig, TakesPrecisionFromDeepSpeedsSections) {
  const std::pair<const char*, Dtype> cases[] = {
      {"{}", Dtype::bf16},
      {R"({"bf16": {"enabled": true}})", Dtype::bf16},
      {R"({"bf16": {"enabled": false}})", Dtype::fp32},
      {R"({"bf16": {"enabled": "auto"}})", Dtype::bf16},
      {R"({"fp16": {"enabled": true}})", Dtype::fp16},
      {R"({"fp16": {"enabled": true}, "bf16": {"enabled": false}})", Dtype::fp16},
      {R"({"fp16": {"enabled": false}})", Dtype::bf16}};
  for (const auto& [file, precision] : cases) {
    const auto config = parse_config(file);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->precision, precision) << file;
  }
}

TEST(TrainConfig, AScheduleThatSaysNoEndEndsWithTheRun) {
  auto config = parse_config(R"({"max_steps": 50, "scheduler": {"type": "WarmupCosineLR"}})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->schedule.total_num_steps, 50u);
  config = parse_config(R"({"scheduler": {"type": "cosine", "params": {"total_steps": "auto"}}})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->schedule.total_steps, 0u);  // by epochs: not known before the data is
  config->max_steps = 20;
  ASSERT_TRUE(resolve_schedule(*config).ok());
  EXPECT_EQ(config->schedule.total_steps, 20u);
}

}  // namespace
}  // namespace penstock::trainer
