#include "runtime/trainer/config/train_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "tests/support/damage.h"

namespace penstock::trainer {
namespace {

constexpr const char* kDeepSpeed = R"({
  // As it stands in somebody's repository.
  "train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 8,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 1e4, "warmup_num_steps": 100, "warmup_type": "linear"}},
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "hysteresis": 4},
  "gradient_clipping": 0.5, /* both kinds of comments */
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/mnt/a", "buffer_count": 4},
                        "stage3_max_live_parameters": 1e9, "sub_group_size": 1e9},
  "aio": {"block_size": 1048576, "queue_depth": 8},
  "flops_profiler": {"enabled": false, "profile_step": 1},
  "amp": {"enabled": false, "opt_level": "O1"},
  "wall_clock_breakdown": false
})";

TEST(TrainConfig, ReadsADeepSpeedFile) {
  const auto config = parse_config(kDeepSpeed);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->precision, Dtype::fp16);
  EXPECT_EQ(config->loss_scaling.initial_scale_power, 12u);
  EXPECT_EQ(config->loss_scaling.hysteresis, 4u);
  EXPECT_EQ(config->hyper.lr, 3e-4);
  EXPECT_EQ(config->hyper.beta2, 0.95);
  EXPECT_EQ(config->schedule.kind, ScheduleKind::warmup_cosine);
  EXPECT_EQ(config->schedule.total_num_steps, 10000u);
  EXPECT_EQ(config->schedule.warmup_type, WarmupType::linear);
  EXPECT_EQ(config->gradient_clipping, 0.5);
  EXPECT_EQ(config->stores, std::vector<std::string>{"/mnt/a"});
  EXPECT_EQ(config->micro_batch, 0u);  // "auto"
}

TEST(TrainConfig, RefusesWhatIsDeeperThanAnyConfig) {
  std::string deep;
  for (int i = 0; i < 150'000; ++i) deep += "{\"\":";
  deep += "1" + std::string(150'000, '}');
  EXPECT_EQ(check_config(deep).status().message(), "config: more than 64 levels");
}

TEST(TrainConfig, SaysOfEveryKeyWhatBecomesOfIt) {
  const auto both = check_config(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})");
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(std::ranges::count(both->keys, "fp16.enabled", &CheckedKey::key), 1) << "one verdict on a key";
  const auto checked = check_config(kDeepSpeed);
  ASSERT_TRUE(checked.ok());
  auto verdict = [&](const std::string& key) {
    for (const CheckedKey& found : checked->keys)
      if (found.key == key) return std::make_pair(found.fate, found.note);
    return std::make_pair(KeyFate::unknown, std::string("is not in the list"));
  };
  EXPECT_EQ(checked->keys.size(), 30u);
  EXPECT_EQ(verdict("optimizer.params.lr").first, KeyFate::honoured);
  EXPECT_EQ(verdict("zero_optimization.stage").first, KeyFate::honoured);
  EXPECT_EQ(verdict("zero_optimization.offload_optimizer.buffer_count").first, KeyFate::no_effect);
  EXPECT_EQ(verdict("zero_optimization.offload_optimizer.nvme_path").first, KeyFate::honoured);
  EXPECT_EQ(verdict("amp.opt_level").first, KeyFate::no_effect);
  EXPECT_NE(verdict("aio.queue_depth").second, "");
}

TEST(TrainConfig, TakesDeepSpeedsShardSizeThatIsNotAskedForAsNone) {
  const auto none = parse_config(R"({"zero_optimization": {"mics_shard_size": -1}})");
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_EQ(none->shard_ranks, 0u);
  const auto four = parse_config(R"({"zero_optimization": {"mics_shard_size": 4}})");
  ASSERT_TRUE(four.ok()) << four.status().message();
  EXPECT_EQ(four->shard_ranks, 4u);
}

TEST(TrainConfig, TakesZeroPlusPlus) {
  const auto config = parse_config(R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": true,
      "zero_quantized_gradients": true, "zero_hpz_partition_size": 8, "mics_shard_size": 8}})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->codes, (RankCodes{.weights = true, .gradients = true}));
  EXPECT_EQ(config->shard_ranks, 8u);
  const auto none = parse_config(R"({"zero_optimization": {"zero_hpz_partition_size": 1}})");
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_EQ(none->shard_ranks, 0u);
  EXPECT_FALSE(none->codes.any());
}

TEST(TrainConfig, ReadsOurOwnKeys) {
  const auto config = parse_config(R"({"model": "/models/x", "data": [{"path": "a.bin", "weight": 3}, "b.txt"],
      "max_steps": 100, "seed": 7, "sequence_length": 128, "held_out_share": 0.05, "head_tokens": 256,
      "parameters": [{"pattern": "norm", "weight_decay": 0}, {"pattern": "wte", "frozen": true, "lr": 1e-5}],
      "scheduler": {"type": "cosine", "params": {"warmup_steps": 10, "total_steps": 100}},
      "penstock": {"host_budget": "24GiB", "stores": ["/a", "/b"], "durability": "every:10", "activations": "offload",
                   "moments": "int8", "space": "single", "micro_batch_group": 4}})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->data.size(), 2u);
  EXPECT_EQ(config->data[0].weight, 3);
  EXPECT_EQ(config->rules[1].pattern, "wte");
  EXPECT_TRUE(config->rules[1].frozen);
  EXPECT_EQ(config->rules[0].weight_decay, 0);
  EXPECT_FALSE(config->rules[0].lr);
  EXPECT_EQ(config->host_budget, "24GiB");
  EXPECT_EQ(config->stores.size(), 2u);
  EXPECT_EQ(config->moments, MomentForm::int8);
  EXPECT_EQ(config->activations, "offload");
  EXPECT_EQ(config->precision, Dtype::bf16);
  EXPECT_EQ(config->gradient_clipping, 1);
}

TEST(TrainConfig, NamesTheNearestKeyOfAnUnknownOne) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"gradient_cliping": 1})", "gradient_clipping"},
      {R"({"bf16": {"enable": true}})", "bf16.enabled"},
      {R"({"optimizer": {"params": {"weigth_decay": 1}}})", "optimizer.params.weight_decay"},
      {R"({"host_budget": "1GiB"})", "penstock.host_budget"},
      {R"({"penstock": {"store": "/a"}})", "penstock.stores"},
      {R"({"max_step": 4})", "max_steps"},
      {R"({"zero_optimization": {"overlap_com": true}})", "zero_optimization.overlap_comm"},
      {R"({"zero_optimization": {"offload_optimizer": {"pin_memry": true}}})",
       "zero_optimization.offload_optimizer.pin_memory"},
      {R"({"lr": 1e-3})", "optimizer.params.lr"},
  };
  for (const auto& [file, nearest] : cases) {
    const auto config = parse_config(file);
    ASSERT_FALSE(config.ok()) << file;
    EXPECT_EQ(config.status().code(), Code::kUsage);
    EXPECT_NE(config.status().remedy().find(std::string("is ") + nearest), std::string::npos)
        << file << ": " << config.status().message() << "; " << config.status().remedy();
  }
}

TEST(TrainConfig, NamesNoKeyThatIsNothingLikeTheUnknownOne) {
  for (const char* file : {R"({"foo": {"bar": {"baz": 1}}})", R"({"flash_attention": true})"}) {
    const Status refused = parse_config(file).status();
    EXPECT_EQ(refused.code(), Code::kUsage) << file;
    EXPECT_EQ(refused.remedy(), "`penstock config keys` lists every key") << file;
  }
}

// As DeepSpeed still does.
TEST(TrainConfig, TakesTheOlderNameOfBf16) {
  for (const bool on : {true, false}) {
    const auto config = parse_config(text(R"({"bfloat16": {"enabled": )", on ? "true" : "false", "}}"));
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->precision, on ? Dtype::bf16 : Dtype::fp32);
  }
  EXPECT_FALSE(parse_config(R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": false}})").ok());
}

TEST(TrainConfig, TakesOneNameInSeveralSections) {
  EXPECT_TRUE(
      parse_config(R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}, "data": [{"path": "a"}, {"path": "a"}]})")
          .ok());
}

TEST(TrainConfig, RefusesWhatItWouldNotDoAndSaysWhatReplacesIt) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"amp": {"enabled": true}})", "bf16.enabled"},
      {R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})", "old gradients"},
      {R"({"zero_optimization": {"zero_quantized_weights": 1}})", "true or false"},
      {R"({"zero_optimization": {"zeropp_loco_param": {"err_beta": 0.8}}})", "zero_quantized_gradients"},
      {R"({"zero_optimization": {"mics_shard_size": 2, "zero_hpz_partition_size": 4}})", "2 is said too"},
      {R"({"fp16": {"fp16_master_weights_and_grads": true}})", "penstock.moments"},
      {R"({"optimizer": {"type": "Lamb"}})", "AdamW, Adam, Adagrad, Lion, SGD"},
      {R"({"optimizer": {"params": {"betas": 0.9}}})", "two numbers"},
      {R"({"max_steps": -1})", "whole number"},
      {R"({"max_steps": 1.5})", "whole number"},
      {R"({"max_steps": "many"})", "many"},
      {R"({"penstock": {"activations": "drop"}})", "recompute_offload"},
      {R"({"data": []})", "at least one"},
      {R"({"data": [{"path": "a", "wait": 1}]})", "weight"},
      {R"({"parameters": [{"lr": 1}]})", "pattern"},
      {R"({"max_steps": 5, "scheduler": {"type": "cosine", "params": {"warmup_steps": 5}}})", "total_steps is 5"},
      {R"({"scheduler": {"type": "OneCycle"}})", "cycle_max_lr"},
      {R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})", "one of them"},
      {R"({"penstock": {"threads": 1025}})", "at most 1024"},
      {R"({"optimizer": {"params": {"eps": 0}}})", "eps"},
      {R"({"optimizer": 3})", "optimizer"},
      {"{", "line 1"},
      {"[]", "object"},
      {"{,}", "not JSON"},
      {" \n", "is empty"},
      {R"({"seed": 1, "bf16": {"enabled": true}, "seed": 2})", "'seed' is there twice"},
      {R"({"a": {"b": 1}, "fp16": {"enabled": true, "enabled": false}})", "'enabled' is there twice"},
      {R"({"optimizer": {"params": {"lr": 1e999}}})", "config: number overflow"},
      {R"({"seed": 18446744073709551615})", "from 0 to 9007199254740992"},
      {R"({"loss_rules": {"window": 1}})", "from 2 to"},
  };
  for (const auto& [file, word] : cases) {
    const auto config = parse_config(file);
    ASSERT_FALSE(config.ok()) << file;
    EXPECT_NE(config.status().message().find(word), std::string::npos) << file << ": " << config.status().message();
  }
  EXPECT_TRUE(
      parse_config(R"({"zero_optimization": {"zero_quantized_weights": false}, "amp": {}, "seed": null})").ok());
}

// Every root keeps the losses of the window and the batches that were left out.
TEST(TrainConfig, RulesAboutTheLossKeepNoMoreThanARootHolds) {
  for (const auto& [key, least, most] : {std::tuple("window", 2, 256), std::tuple("at_most", 1, 100)}) {
    auto with = [key = key](int number) {
      return parse_config(text(R"({"loss_rules": {")", key, "\": ", number, "}}"));
    };
    EXPECT_TRUE(with(least).ok()) << key;
    EXPECT_TRUE(with(most).ok()) << key;
    EXPECT_FALSE(with(least - 1).ok()) << key;
    EXPECT_NE(with(most + 1).status().message().find(text("at most ", most, " expected")), std::string::npos) << key;
  }
}

TEST(TrainConfig, GoesBackWhereAnySnapshotsAreKept) {
  auto going_back = [](const char* more) {
    return parse_config(text(R"({"loss_rules": {"spike": "rollback"})", more, "}")).ok();
  };
  EXPECT_FALSE(going_back(""));
  EXPECT_TRUE(going_back(R"(, "keep_every": 5)"));
  EXPECT_TRUE(going_back(R"(, "keep_best": 1, "eval_every": 5)"));
}

// Without what makes updates wait, a step is taken back by its other slots, which only the step before may have.
TEST(TrainConfig, LeavesOutBatchesWhereAStepCanBeTakenBack) {
  auto leaving_out = [](const char* more) {
    return parse_config(
               text(R"({"loss_rules": {"spike": "skip"}, "gradient_clipping": 0, "skip_overflow": )", more, "}"))
        .ok();
  };
  EXPECT_TRUE(leaving_out(R"(true, "penstock": {"space": "single"})"));
  EXPECT_TRUE(leaving_out(R"(false, "penstock": {"durability": "step"})"));
  EXPECT_FALSE(leaving_out(R"(false, "penstock": {"durability": "step", "space": "single"})"));
  EXPECT_FALSE(leaving_out(R"(false, "penstock": {"durability": "every:2"})"));
}

TEST(TrainConfig, CompletesTheBatchTriangle) {
  struct Case {
    uint64_t train, micro, accumulation;
    uint32_t ranks;
    uint64_t all, each, steps;  // 0: refused
  };
  for (const Case& c :
       {Case{32, 0, 8, 1, 32, 4, 8}, Case{32, 4, 0, 1, 32, 4, 8}, Case{0, 4, 8, 2, 64, 4, 8}, Case{0, 0, 0, 1, 1, 1, 1},
        Case{32, 0, 0, 4, 32, 8, 1}, Case{0, 0, 6, 1, 6, 1, 6}, Case{32, 4, 8, 1, 32, 4, 8}, Case{33, 4, 0, 1, 0, 0, 0},
        Case{32, 4, 4, 1, 0, 0, 0}, Case{4, 0, 8, 1, 0, 0, 0}}) {
    TrainConfig config;
    config.train_batch = c.train, config.micro_batch = c.micro, config.accumulation = c.accumulation;
    const Status status = resolve_batches(config, c.ranks);
    EXPECT_EQ(status.ok(), c.all != 0) << c.train << " " << c.micro << " " << c.accumulation;
    if (!status.ok()) continue;
    EXPECT_EQ(config.train_batch, c.all);
    EXPECT_EQ(config.micro_batch, c.each);
    EXPECT_EQ(config.accumulation, c.steps);
  }
}

TEST(TrainConfig, EndsWellOnDamagedFiles) {
  const std::string whole = kDeepSpeed;
  const auto* data = reinterpret_cast<const std::byte*>(whole.data());
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= 5000; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<std::byte> bytes = damaged({data, data + whole.size()}, random);
    const auto config = parse_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    accepted += config.ok();
    if (config.ok()) {
      TrainConfig resolved = *config;
      if (resolved.max_steps == 0) resolved.max_steps = 1'000'000;
      EXPECT_TRUE(resolve_schedule(resolved).ok()) << "seed " << seed;
    }
  }
  EXPECT_GT(accepted, 20u);
  EXPECT_LT(accepted, 4000u);
}

TEST(TrainConfig, EveryKnownKeyIsListedOnceAndThoseNotHonouredSayWhy) {
  const std::vector<CheckedKey> keys = known_keys();
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(keys[i].key, keys[j].key);
    if (keys[i].fate != KeyFate::honoured) {
      EXPECT_NE(keys[i].note, "") << keys[i].key;
    }
  }
}

}  // namespace
}  // namespace penstock::trainer
