#include "runtime/trainer/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/trainer/model.h"
#include "tests/support/damage.h"

namespace penstock::trainer {
namespace {

constexpr const char* kLlama =
    R"("hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
       "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5)";

std::string config_of(const std::string& architecture, const std::string& more = "") {
  return R"({"architectures": [")" + architecture + R"("], )" + kLlama + (more.empty() ? "" : ", " + more) + "}";
}

std::vector<float> frequencies_of(const ModelConfig& config) {
  return rope_frequencies(config.rope, config.head_size, 100);
}

TEST(ModelConfig, CountsTheParametersOfPublishedModels) {
  EXPECT_EQ(make_model(*parse_model_config(config_of("LlamaForCausalLM")), Dtype::bf16).parameters(), 8'030'261'248u);
  EXPECT_EQ(make_model(*parse_model_config(R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12,
                                                "vocab_size": 50257, "n_positions": 1024})"),
                       Dtype::bf16)
                .parameters(),
            124'439'808u);
  EXPECT_EQ(make_model(*parse_model_config(R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896,
                "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                "vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": true})"),
                       Dtype::bf16)
                .parameters(),
            494'032'768u);
  EXPECT_EQ(make_model(*parse_model_config(R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024,
                "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
                "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": true})"),
                       Dtype::bf16)
                .parameters(),
            596'049'920u);
  EXPECT_EQ(make_model(*parse_model_config(R"({"architectures": ["Gemma2ForCausalLM"], "hidden_size": 2304,
                "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192})"),
                       Dtype::bf16)
                .parameters(),
            2'614'341'888u);
  EXPECT_EQ(make_model(*parse_model_config(R"({"model_type": "gemma3_text", "hidden_size": 1152,
                "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1,
                "head_dim": 256, "vocab_size": 262144, "max_position_embeddings": 32768})"),
                       Dtype::bf16)
                .parameters(),
            999'885'952u);
}

constexpr const char* kGemma =
    R"("hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
       "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 64)";

Result<ModelConfig> gemma(const char* architecture, const std::string& more = "") {
  return parse_model_config(text(R"({"architectures": [")", architecture, R"("], )", kGemma, more, "}"));
}

TEST(ModelConfig, GemmasLayersSeeWindowsOrAllInTurn) {
  const auto second = gemma("Gemma2ForCausalLM", R"(, "sliding_window": 9)");
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second->windows, (std::vector<uint32_t>{9, 0, 9, 0, 9, 0, 9}));
  EXPECT_EQ(second->attention_softcap, 50);
  EXPECT_EQ(second->logit_softcap, 30);
  EXPECT_FALSE(second->window_rope);
  EXPECT_EQ(gemma("Gemma2ForCausalLM", R"(, "attn_logit_softcapping": null)")->attention_softcap, 0);

  const auto third = gemma("Gemma3ForCausalLM");
  ASSERT_TRUE(third.ok()) << third.status().message();
  EXPECT_EQ(third->windows, (std::vector<uint32_t>{4096, 4096, 4096, 4096, 4096, 0, 4096}));
  EXPECT_EQ(third->rope.theta, 1e6);
  EXPECT_EQ(third->window_rope->theta, 1e4);
  EXPECT_EQ(third->attention_softcap + third->logit_softcap, 0);
}

// transformers 5 writes "rope_parameters" by type of layer, those before it "rope_scaling" for those without a window.
TEST(ModelConfig, ReadsGemmasRopesAsOldAndNewConfigsHaveThem) {
  const auto older = gemma("Gemma3ForCausalLM", R"(, "rope_theta": 500000, "rope_local_base_freq": 2000,
                           "rope_scaling": {"rope_type": "linear", "factor": 8})");
  const auto newer = gemma("Gemma3ForCausalLM", R"(, "rope_parameters": {
                           "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 500000},
                           "sliding_attention": {"rope_type": "default", "rope_theta": 2000}})");
  ASSERT_TRUE(older.ok()) << older.status().message();
  ASSERT_TRUE(newer.ok()) << newer.status().message();
  for (const ModelConfig& config : {*older, *newer}) {
    EXPECT_EQ(config.rope.kind, RopeKind::linear);
    EXPECT_EQ(config.rope.theta, 500000);
    EXPECT_EQ(config.window_rope->kind, RopeKind::plain);
    EXPECT_EQ(config.window_rope->theta, 2000);
  }
}

TEST(ModelConfig, RefusesWhatGemmaDoesNotCompute) {
  auto refused = [](const char* architecture, const char* more) {
    return gemma(architecture, more).status().message();
  };
  EXPECT_EQ(refused("Gemma3ForCausalLM", R"(, "attn_logit_softcapping": 50)"),
            "config.json: attn_logit_softcapping: is 50, null expected: the model's own class leaves it out");
  EXPECT_EQ(refused("Gemma3ForCausalLM", R"(, "use_bidirectional_attention": true)"),
            "config.json: use_bidirectional_attention: is not supported: a token sees those before it only");
  EXPECT_EQ(refused("Gemma2ForCausalLM", R"(, "hidden_activation": "relu")"),
            "config.json: hidden_activation: 'relu' is not supported; gelu_pytorch_tanh is");
  EXPECT_EQ(refused("Gemma2ForCausalLM", R"(, "layer_types": ["chunked_attention"])"),
            "config.json: layer_types: expected a list of 7");
  EXPECT_NE(refused("Gemma3ForConditionalGeneration", "").find("is not supported"), std::string::npos);
}

TEST(ModelConfig, StartsEveryParameterWhereTheEngineWantsIt) {
  const Model model = make_model(*parse_model_config(config_of("MistralForCausalLM")), Dtype::bf16);
  ASSERT_EQ(model.units.size(), 34u);
  for (const ModelUnit& unit : model.units) {
    uint64_t end = 0;
    for (const ModelParameter& parameter : unit.parameters) {
      EXPECT_EQ(parameter.first_element % kParameterAlignmentElements, 0u) << parameter.name;
      EXPECT_GE(parameter.first_element, end) << parameter.name;
      end = parameter.first_element + parameter.elements;
    }
    EXPECT_LE(end, unit.elements);
  }
}

TEST(ModelConfig, ATiedHeadReadsTheEmbeddingsUnit) {
  const Model tied =
      make_model(*parse_model_config(config_of("LlamaForCausalLM", R"("tie_word_embeddings": true)")), Dtype::bf16);
  EXPECT_EQ(tied.uses.back().units, (std::vector<uint32_t>{33, 0}));
  const Model untied = make_model(*parse_model_config(config_of("LlamaForCausalLM")), Dtype::bf16);
  EXPECT_EQ(untied.uses.back().units, (std::vector<uint32_t>{33}));
}

// transformers 5 writes "rope_parameters", those before it "rope_theta" and "rope_scaling" with "type" or "rope_type".
TEST(ModelConfig, ReadsRopeScalingAsOldAndNewConfigsHaveIt) {
  const char* scaling = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 8192)";
  const auto newer = parse_model_config(
      config_of("LlamaForCausalLM",
                text(R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, )", scaling, "}")));
  const auto older = parse_model_config(config_of(
      "LlamaForCausalLM", text(R"("rope_theta": 500000.0, "rope_scaling": {"type": "llama3", )", scaling, "}")));
  ASSERT_TRUE(newer.ok()) << newer.status().message();
  ASSERT_TRUE(older.ok()) << older.status().message();
  EXPECT_EQ(frequencies_of(*newer), frequencies_of(*older));
  EXPECT_EQ(newer->rope.theta, 500000);
  EXPECT_NE(frequencies_of(*newer), frequencies_of(*parse_model_config(config_of("LlamaForCausalLM"))));
}

TEST(ModelConfig, WindowsAreOfTheLayersThatHaveThem) {
  const auto mistral = parse_model_config(config_of("MistralForCausalLM", R"("sliding_window": 4096)"));
  EXPECT_EQ(mistral->windows, std::vector<uint32_t>(32, 4096));
  EXPECT_EQ(parse_model_config(config_of("MistralForCausalLM"))->windows, std::vector<uint32_t>(32, 4096));
  EXPECT_EQ(parse_model_config(config_of("MistralForCausalLM", R"("sliding_window": null)"))->windows,
            std::vector<uint32_t>(32, 0));
  const auto off = parse_model_config(config_of("Qwen2ForCausalLM", R"("sliding_window": 4096)"));
  EXPECT_EQ(off->windows, std::vector<uint32_t>(32, 0));
  const auto on = parse_model_config(
      config_of("Qwen2ForCausalLM", R"("sliding_window": 4096, "use_sliding_window": true, "max_window_layers": 30)"));
  EXPECT_EQ(on->windows[29], 0u);
  EXPECT_EQ(on->windows[30], 4096u);
  EXPECT_EQ(parse_model_config(config_of("LlamaForCausalLM", R"("sliding_window": 4096)"))->windows[0], 0u);
}

// Configs of the hub leave out what is as the model's class in transformers has it.
TEST(ModelConfig, WhatIsLeftOutIsAsTransformersHasIt) {
  auto without = [](const std::string& architecture, const std::string& key, const std::string& more = "") {
    std::string config = config_of(architecture, more);
    const size_t begin = config.find('"' + key), end = config.find(',', begin) + 1;
    return *parse_model_config(config.erase(begin, end - begin));
  };
  EXPECT_EQ(without("MistralForCausalLM", "num_key_value_heads").kv_heads, 8u);
  EXPECT_EQ(without("LlamaForCausalLM", "num_key_value_heads").kv_heads, 32u);
  for (const char* qwen : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const auto windowed = parse_model_config(config_of(qwen, R"("use_sliding_window": true)"));
    EXPECT_EQ(windowed->windows[27], 0u) << qwen;
    EXPECT_EQ(windowed->windows[28], 4096u) << qwen;
    const auto none = parse_model_config(config_of(qwen, R"("use_sliding_window": true, "sliding_window": null)"));
    EXPECT_EQ(none->windows, std::vector<uint32_t>(32, 0)) << qwen;
  }
  for (const char* architecture : {"Gemma2ForCausalLM", "Gemma3ForCausalLM"}) {
    EXPECT_EQ(gemma(architecture)->head_size, 256u);
    EXPECT_EQ(gemma(architecture, R"(, "head_dim": 64)")->attention_scales, std::vector<double>(7, 1 / 16.0));
  }
  const auto gpt2 = parse_model_config(
      R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 131, "n_positions": 64})");
  for (const double dropout : {gpt2->embedding_dropout, gpt2->attention_dropout, gpt2->residual_dropout})
    EXPECT_EQ(dropout, 0.1);
  EXPECT_EQ(gpt2->norm_epsilon, 1e-5);
  EXPECT_EQ(gpt2->ffn, 256u);
}

TEST(ModelConfig, BeginsAGpt2WithWhatEachBlockAddsScaledDownByTheNumberOfAdditions) {
  const Model model = make_model(*parse_model_config(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 8, "n_head": 4,
                                         "vocab_size": 131, "n_positions": 64, "initializer_range": 0.04})"),
                                 Dtype::bf16);
  for (const ModelParameter& parameter : model.units[3].parameters) {
    if (parameter.shape.size() != 2) continue;
    const bool adds = parameter.name.ends_with("c_proj.weight");
    EXPECT_DOUBLE_EQ(parameter.deviation, adds ? 0.01 : 0.04) << parameter.name;  // two additions in each of 8 blocks
  }
}

// By 1 + 0.1 x mscale x log(factor), or where both are said, by the ratio of theirs.
TEST(ModelConfig, YarnScalesAttentionByWhatTheConfigSays) {
  auto factor = [](const std::string& more) {
    return parse_model_config(config_of("LlamaForCausalLM", text(R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                              "original_max_position_embeddings": 2048)",
                                                                 more, "}")))
        ->rope.attention_factor;
  };
  const double log_factor = std::log(4.0);
  EXPECT_DOUBLE_EQ(factor(""), 1 + 0.1 * log_factor);
  EXPECT_DOUBLE_EQ(factor(R"(, "mscale": 0.5, "mscale_all_dim": 2)"), (1 + 0.05 * log_factor) / (1 + 0.2 * log_factor));
  EXPECT_DOUBLE_EQ(factor(R"(, "mscale": 0.5)"), 1 + 0.1 * log_factor);
  EXPECT_EQ(factor(R"(, "attention_factor": 1.25, "mscale": 0.5, "mscale_all_dim": 2)"), 1.25);
}

TEST(ModelConfig, RefusesWhatItDoesNotComputeByItsName) {
  const std::pair<std::string, std::string> cases[] = {
      {config_of("MixtralForCausalLM"), "MixtralForCausalLM"},
      {R"({"model_type": "phi3"})", "phi3"},
      {"{}", "architecture"},
      {"[]", "not a JSON object"},
      {"{", "not a JSON object"},
      {config_of("LlamaForCausalLM", R"("hidden_act": "gelu")"), "'gelu'"},
      {config_of("LlamaForCausalLM", R"("rope_scaling": {"type": "longrope", "factor": 2})"), "'longrope'"},
      {config_of("LlamaForCausalLM", R"("rope_scaling": {"type": "linear"})"), "factor"},
      {config_of("LlamaForCausalLM", R"("head_dim": 127)"), "head_dim"},
      {config_of("LlamaForCausalLM", R"("partial_rotary_factor": 0.5)"), "partial_rotary_factor"},
      {R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64})", "num_hidden_layers"},
      {R"({"architectures": ["LlamaForCausalLM"], "hidden_size": -64, "num_hidden_layers": 2})", "-64"},
      {config_of("LlamaForCausalLM", R"("tie_word_embeddings": "yes")"), "tie_word_embeddings"},
      {R"({"model_type": "gpt2", "n_embd": 10, "n_layer": 1, "n_head": 3, "vocab_size": 5, "n_positions": 4})",
       "n_embd"},
  };
  for (const auto& [config, word] : cases) {
    const auto model = parse_model_config(config);
    ASSERT_FALSE(model.ok()) << config;
    EXPECT_EQ(model.status().code(), Code::kUsage);
    EXPECT_NE(model.status().message().find(word), std::string::npos) << model.status().message();
  }
  EXPECT_NE(parse_model_config(config_of("MixtralForCausalLM")).status().remedy().find("LlamaForCausalLM"),
            std::string::npos);
}

// As transformers 5.23 has it: where truncate is off, the corrections begin and end between two pairs.
TEST(Rope, OfYarnIsStretchedFromWholePairsUnlessTheConfigSaysOtherwise) {
  Rope rope{.kind = RopeKind::yarn, .theta = 10000, .factor = 4, .original_positions = 1024};
  EXPECT_FLOAT_EQ(rope_frequencies(rope, 16, 1)[2], 0.081250004f);
  EXPECT_FLOAT_EQ(rope_frequencies(rope, 16, 1)[4], 0.0043750000f);
  rope.truncate = false;
  EXPECT_FLOAT_EQ(rope_frequencies(rope, 16, 1)[2], 0.085398637f);
  EXPECT_FLOAT_EQ(rope_frequencies(rope, 16, 1)[4], 0.0035569714f);
}

// As transformers computes them: short waves stay, long ones are stretched, and those between are in part.
TEST(Rope, OfLlama3IsStretchedByTheLengthOfEachWave) {
  const Rope rope{.kind = RopeKind::llama3, .theta = 10000, .factor = 8, .original_positions = 1024};
  const std::vector<float> found = rope_frequencies(rope, 16, 1);
  const float expected[] = {
      1, 0.316227764f, 0.1f, 0.0316227786f, 0.00308676064f, 0.000395284733f, 0.000125000006f, 3.95284733e-05f};
  ASSERT_EQ(found.size(), std::size(expected));
  for (size_t pair = 0; pair < found.size(); ++pair) EXPECT_FLOAT_EQ(found[pair], expected[pair]) << pair;
}

// Whatever the bytes are: what is accepted makes a model, in bounded memory.
TEST(ModelConfig, EndsWellOnDamagedFiles) {
  const std::string whole = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 131, "head_dim": 16,
      "max_position_embeddings": 64, "use_sliding_window": true, "sliding_window": 9, "max_window_layers": 1,
      "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}})";
  const auto* data = reinterpret_cast<const std::byte*>(whole.data());
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<std::byte> bytes = damaged({data, data + whole.size()}, random);
    const auto config = parse_model_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!config.ok()) continue;
    ++accepted;
    const Model model = make_model(*config, Dtype::bf16);
    EXPECT_EQ(model.uses.size(), config->layers + 2u) << "seed " << seed;
    EXPECT_EQ(config->windows.size(), config->layers) << "seed " << seed;
    EXPECT_EQ(frequencies_of(*config).size(), config->head_size / 2) << "seed " << seed;
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_LT(accepted, 19000u);
}

}  // namespace
}  // namespace penstock::trainer
