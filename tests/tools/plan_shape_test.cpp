// Model shapes: the parameters of published models to the last one, and shapes out of a few words.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/trainer/model.h"
#include "tools/plan/known_models.h"
#include "tools/plan/model_config.h"
#include "tools/plan/shape_solver.h"
#include "tools/plan/training_workload.h"

namespace penstock::tools {
namespace {

uint64_t parameters_of(const std::string& name) {
  const Result<ModelShape> shape = load_model(name);
  EXPECT_TRUE(shape.ok()) << name;
  return shape.ok() ? shape->parameters() : 0;
}

// As their authors' weights count.
TEST(ModelShape, CountsPublishedModelsExactly) {
  EXPECT_EQ(parameters_of("gpt2"), 124'439'808u);
  EXPECT_EQ(parameters_of("gpt2-xl"), 1'557'611'200u);
  EXPECT_EQ(parameters_of("gpt-neo-1.3b"), 1'315'575'808u);
  EXPECT_EQ(parameters_of("llama-2-7b"), 6'738'415'616u);
  EXPECT_EQ(parameters_of("llama-2-13b"), 13'015'864'320u);
  EXPECT_EQ(parameters_of("llama-2-70b"), 68'976'648'192u);
  EXPECT_EQ(parameters_of("llama-3-8b"), 8'030'261'248u);
  EXPECT_EQ(parameters_of("mistral-7b"), 7'241'732'096u);
  EXPECT_EQ(parameters_of("mixtral-8x7b"), 46'702'792'704u);
  EXPECT_EQ(parameters_of("qwen2.5-7b"), 7'615'616'512u);
}

TEST(ModelShape, CountsActiveExperts) {
  const Result<ModelShape> mixtral = load_model("mixtral-8x7b");
  ASSERT_TRUE(mixtral.ok());
  EXPECT_NEAR(static_cast<double>(mixtral->active_parameters()), 12.9e9, 0.05e9);
}

TEST(ModelConfig, ReadsEveryStyle) {
  struct Case {
    const char* json;
    uint64_t parameters;
  };
  const Case cases[] = {
      {R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257})",
       124'439'808u},
      {R"({"model_type": "gpt_neo", "hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": null,
           "max_position_embeddings": 2048, "vocab_size": 50257})",
       125'198'592u},
      {R"({"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
           "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": true})",
       494'032'768u},
      {R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
           "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
           "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936})",
       30'532'122'624u},
      {R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
           "vocab_size": 32000})",
       46'702'792'704u},
      {R"({"model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8,
           "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384, "vocab_size": 256000})",
       2'506'172'416u},
      {R"({"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8,
           "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216, "vocab_size": 256000})",
       2'614'341'888u},
      {R"({"model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
           "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262144})",
       999'885'952u},
      // What its text_config leaves out is as its class has it.
      {R"({"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": {"model_type": "gemma3_text",
           "hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240}})",
       3'880'263'168u},
      {R"({"model_type": "qwen2_5_vl", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "vision_config": {}})",
       7'615'616'512u},
      {R"({"model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064})",
       3'821'079'552u},
      {R"({"model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": null, "intermediate_size": 10240, "vocab_size": 51200})",
       2'779'683'840u},
      {R"({"model_type": "gpt_neox", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 8,
           "intermediate_size": 8192, "max_position_embeddings": 2048, "vocab_size": 50304})",
       1'011'781'632u},
      {R"({"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048, "n_inner": null,
           "vocab_size": 50400, "tie_word_embeddings": false})",
       6'050'882'784u},
      {R"({"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072,
           "max_position_embeddings": 2048, "vocab_size": 50272, "word_embed_proj_dim": 768})",
       125'239'296u},
      {R"({"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880})",
       559'214'592u},
      {R"({"model_type": "bloom", "n_embed": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880})",
       7'069'016'064u},
      {R"({"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
           "num_kv_heads": 71, "multi_query": true, "new_decoder_architecture": false, "parallel_attn": true,
           "bias": false, "vocab_size": 65024})",
       6'921'720'704u},
      {R"({"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
           "num_kv_heads": 8, "new_decoder_architecture": true, "bias": false, "vocab_size": 65024})",
       41'303'293'952u},
  };
  for (const Case& one : cases) {
    const Result<ModelShape> shape = parse_model_shape(one.json);
    ASSERT_TRUE(shape.ok()) << shape.status().message() << one.json;
    EXPECT_EQ(shape->parameters(), one.parameters) << one.json;
  }
}

// Of a config that leaves out what is as its model's class has it, too.
TEST(ModelConfig, CountsWhatTheTrainerTrains) {
  const std::string sizes = R"("hidden_size": 1024, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300,
      "num_attention_heads": 16, "max_position_embeddings": 64)";
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"}) {
    for (const char* more : {"", R"(, "num_key_value_heads": 2)", R"(, "head_dim": 32)", R"(, "attention_bias": true)",
                             R"(, "tie_word_embeddings": true)", R"(, "tie_word_embeddings": false)"}) {
      const std::string config = text(R"({"model_type": ")", type, "\", ", sizes, more, "}");
      const auto trained = trainer::parse_model_config(config);
      ASSERT_TRUE(trained.ok()) << trained.status().message();
      EXPECT_EQ(parse_model_shape(config)->parameters(), trainer::make_model(*trained, Dtype::bf16).parameters())
          << config;
    }
  }
}

TEST(ModelConfig, SaysWhereItCountsTheTextPartAlone) {
  const Result<ModelShape> shape = parse_model_shape(R"({"model_type": "llava", "vision_config": {"hidden_size": 1024},
          "text_config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                          "intermediate_size": 128, "vocab_size": 300}})");
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_EQ(shape->name, "llava (its text part)");
}

TEST(ModelConfig, SaysThatQuantizationIsIgnored) {
  const std::string sizes = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 300)";
  const Result<ModelShape> shape =
      parse_model_shape(sizes + R"(, "quantization_config": {"quant_method": "gptq", "bits": 4}})");
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  EXPECT_NE(shape->note.find("quantization (gptq) is ignored"), std::string::npos) << shape->note;
  EXPECT_EQ(parse_model_shape(sizes + "}")->note, "");
}

// Of most a count as of LLaMA would be wrong, of some by half.
TEST(ModelConfig, RefusesModelsThatItDoesNotKnowAndSaysWhatElse) {
  for (const char* type : {"bert", "t5", "mamba", "deepseek_v3", "mllama_text_model"}) {
    const Result<ModelShape> shape = parse_model_shape(
        text(R"({"model_type": ")", type, R"(", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,)",
             R"("intermediate_size": 128, "vocab_size": 300})"));
    ASSERT_FALSE(shape.ok()) << type;
    EXPECT_EQ(shape.status().message(), text("model config: model_type: '", type, "': unsupported"));
    EXPECT_NE(shape.status().remedy().find("--layers"), std::string::npos);
    EXPECT_NE(shape.status().remedy().find("qwen3_moe"), std::string::npos);
  }
}

TEST(ModelConfig, RefusesNonsenseAndNamesTheKey) {
  for (
      const auto& [json, part] : std::vector<std::pair<std::string, std::string>>{
          {"", "not a JSON object"},
          {"[1]", "not a JSON object"},
          {R"({"model_type": "llama"})", "num_hidden_layers: missing"},
          {R"({"num_hidden_layers": "many"})", "num_hidden_layers: string: a whole number up to 16777216 expected"},
          {R"({"num_hidden_layers": -3})", "num_hidden_layers: -3: a whole number up to 16777216 expected"},
          {R"({"num_hidden_layers": 1e30})", "num_hidden_layers: 1e+30: a whole number"},
          {R"({"num_hidden_layers": 2, "hidden_size": 0, "num_attention_heads": 1, "intermediate_size": 4,
               "vocab_size": 7})",
           "is 0"},
          {R"({"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 4,
               "vocab_size": 7, "num_local_experts": 4, "num_experts_per_tok": 5})",
           "more experts"},
          {R"({"model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 1,
               "intermediate_size": 4, "vocab_size": 7, "num_experts": 4, "num_experts_per_tok": 2,
               "decoder_sparse_step": 2})",
           "decoder_sparse_step: only 1 is supported"},
          {R"({"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
               "ffn_dim": 4096, "max_position_embeddings": 2048, "vocab_size": 50272, "word_embed_proj_dim": 512})",
           "word_embed_proj_dim: only the value"},
          {R"({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}})",
           "num_hidden_layers: missing"},
          {R"({"num_hidden_layers": 2, "hidden_size": 4096, "num_attention_heads": 33, "intermediate_size": 4,
               "vocab_size": 7})",
           "4096 is not a multiple of the 33"},
          // 2^24 layers would be gigabytes of units, the other two products that wrap around.
          {R"({"num_hidden_layers": 16777216, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 4,
               "vocab_size": 7})",
           "16777216 layers"},
          {R"({"num_hidden_layers": 2, "hidden_size": 16777216, "num_attention_heads": 1, "intermediate_size": 16777216,
               "num_experts": 16777216, "vocab_size": 7})",
           "more parameters than the"},
          {R"({"num_hidden_layers": 2, "hidden_size": 16777216, "num_attention_heads": 16777216, "head_dim": 16777216,
               "intermediate_size": 4, "vocab_size": 7})",
           "more parameters than the"},
      }) {
    const Result<ModelShape> shape = parse_model_shape(json);
    ASSERT_FALSE(shape.ok()) << json;
    EXPECT_EQ(shape.status().code(), Code::kUsage);
    EXPECT_NE(shape.status().message().find(part), std::string::npos) << shape.status().message();
  }
}

TEST(ShapeSolver, ComesOutWithinOnePercent) {
  for (uint64_t parameters : {14'000'000u, 124'000'000u, 350'000'000u, 1'300'000'000u}) {
    for (uint64_t layers : {0u, 6u, 12u, 24u, 40u}) {
      const Result<ModelShape> shape = solve_shape({.parameters = parameters, .layers = layers});
      if (!shape.ok()) {
        EXPECT_EQ(parameters, 14'000'000u) << shape.status().message();  // its embedding alone is most of it
        continue;
      }
      EXPECT_NEAR(static_cast<double>(shape->parameters()) / static_cast<double>(parameters), 1, 0.01);
      EXPECT_TRUE(layers == 0 || shape->layers == layers);
    }
  }
  for (double billions : {3.0, 7.0, 13.0, 30.0, 70.0, 175.0, 1000.0}) {
    const auto parameters = static_cast<uint64_t>(billions * 1e9);
    const Result<ModelShape> shape = solve_shape({.parameters = parameters});
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    EXPECT_NEAR(static_cast<double>(shape->parameters()) / static_cast<double>(parameters), 1, 0.01);
    EXPECT_EQ(shape->hidden % shape->heads, 0u);
  }
}

TEST(ShapeSolver, FindsTheShapeThatPeopleMean) {
  const Result<ModelShape> shape = solve_shape({.parameters = 7'000'000'000, .layers = 32});
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->hidden, 4096u);
  EXPECT_EQ(shape->heads, 32u);
  // A width that is no power of two.
  const Result<ModelShape> wider = solve_shape({.parameters = 13'000'000'000, .layers = 40});
  ASSERT_TRUE(wider.ok());
  EXPECT_EQ(wider->hidden, 5120u);
  EXPECT_EQ(wider->heads, 40u);
}

// As published models of these sizes have it.
TEST(ShapeSolver, SmallModelsShareEmbeddingAndHead) {
  for (const auto& [parameters, tied] : {std::pair(uint64_t{500'000'000}, true),
                                         {uint64_t{1'500'000'000}, true},
                                         {uint64_t{3'000'000'000}, false},
                                         {uint64_t{7'000'000'000}, false}}) {
    const Result<ModelShape> shape = solve_shape({.parameters = parameters});
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    EXPECT_EQ(shape->tied, tied) << parameters;
  }
}

TEST(ShapeSolver, KeepsWhatWasSaidOrRefuses) {
  const Result<ModelShape> kept = solve_shape({.parameters = 7'000'000'000, .layers = 30, .heads = 40, .kv_heads = 8});
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  EXPECT_EQ(kept->layers, 30u);
  EXPECT_EQ(kept->heads, 40u);
  EXPECT_EQ(kept->kv_heads, 8u);
  for (const ShapeWish& wish : std::vector<ShapeWish>{
           {},
           {.layers = 4},
           {.parameters = 7'000'000'000, .layers = 32, .hidden = 1024, .ffn = 1024},
           {.parameters = 1000},
           {.layers = 4, .hidden = 100, .heads = 7},
           {.layers = uint64_t{1} << 40, .hidden = 64},
           {.layers = uint64_t{1} << 24, .hidden = 64},
           {.layers = 2, .hidden = uint64_t{1} << 24},
           {.parameters = uint64_t{1} << 53, .heads = uint64_t{1} << 20},
           {.parameters = 10'000'000'000'000, .hidden = 16, .vocab = 100},
       }) {
    const Result<ModelShape> refused = solve_shape(wish);
    ASSERT_FALSE(refused.ok()) << refused->parameters();
    EXPECT_EQ(refused.status().code(), Code::kUsage);
  }
}

// 6 flops a parameter and token without recomputation, besides attention.
TEST(TrainingWorkload, ComputesSixFlopsAParameterAndToken) {
  const Result<ModelShape> shape = load_model("llama-2-7b");
  const StepShape step{.tokens = 1 << 16, .sequence = 16, .micro_batches = 4, .ranks = 2, .device_flops = 1e12};
  double seconds = 0;
  uint64_t elements = 0;
  for (const Use& use : training_uses(*shape, step)) seconds += (use.forward_s + use.backward_s) * step.micro_batches;
  for (const Unit& unit : training_units(*shape, step)) elements += unit.elements;
  // The head's logits are made twice; the embedding is looked up.
  const double computed = 6.0 * (6.738e9 - 131e6) + 2.0 * 131e6;
  EXPECT_NEAR(seconds * 1e12 * 2 / (1 << 16), computed, 0.01 * computed);
  EXPECT_EQ(elements, shape->parameters() / 2);
  const std::vector<Use> uses = training_uses(*shape, step);
  EXPECT_DOUBLE_EQ(uses[1].backward_s, 2 * uses[1].forward_s);
  EXPECT_DOUBLE_EQ(uses.back().backward_s, 3 * uses.back().forward_s);
}

TEST(TrainingWorkload, ATiedHeadBorrowsTheEmbedding) {
  const Result<ModelShape> shape = load_model("gpt2");
  const StepShape step{.tokens = 1024, .sequence = 1024, .device_flops = 1e12};
  const std::vector<Unit> units = training_units(*shape, step);
  const std::vector<Use> uses = training_uses(*shape, step);
  ASSERT_EQ(units.size(), 14u);
  ASSERT_EQ(uses.size(), 14u);
  EXPECT_EQ(uses.front().units, std::vector<uint32_t>{0});
  EXPECT_EQ(uses.back().units, (std::vector<uint32_t>{13, 0}));
  EXPECT_EQ(units.back().elements, 2u * 768);
}

}  // namespace
}  // namespace penstock::tools
