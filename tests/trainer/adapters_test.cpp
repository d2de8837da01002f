// Adapters as units beside frozen ones, their files, and how they are added to weights.
#include "runtime/trainer/config/adapters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "runtime/trainer/adapter_merge.h"
#include "runtime/trainer/files/adapter_folder.h"
#include "runtime/trainer/files/starting_values.h"
#include "runtime/trainer/initial_values.h"
#include "tests/trainer/scratch_folder.h"

namespace penstock::trainer {
namespace {

constexpr const char* kLlama = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 131,
    "max_position_embeddings": 64})";
constexpr const char* kGpt2 = R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4,
    "vocab_size": 131, "n_positions": 64})";

Result<Model> adapted(const char* config, const LoraConfig& lora) {
  Model model = make_model(*parse_model_config(config), Dtype::bf16);
  PENSTOCK_TRY(add_adapters(lora, kParameterAlignmentElements, model));
  return Result<Model>(std::move(model));
}

std::vector<std::string> names_of(const ModelUnit& unit) {
  std::vector<std::string> names;
  for (const ModelParameter& parameter : unit.parameters) names.push_back(parameter.name);
  return names;
}

TEST(Adapters, AreAUnitOfTheirOwnBehindEachBlockAndAloneAreTrained) {
  const Model model = *adapted(kLlama, {.rank = 4, .targets = {"q_proj", "self_attn.k_proj"}});
  ASSERT_EQ(model.units.size(), 8u);  // embedding, three blocks with adapters, head
  EXPECT_EQ(model.units[4].name, "block 1 adapters");
  EXPECT_EQ(model.uses[2].units, (std::vector<uint32_t>{3, 4}));
  EXPECT_EQ(model.uses.back().units, (std::vector<uint32_t>{7}));
  const std::string module = "model.layers.1.self_attn.";
  EXPECT_EQ(names_of(model.units[4]),
            (std::vector<std::string>{module + "q_proj.lora_A.weight", module + "q_proj.lora_B.weight",
                                      module + "k_proj.lora_A.weight", module + "k_proj.lora_B.weight"}));
  EXPECT_EQ(model.units[4].parameters[2].shape, (std::vector<uint64_t>{4, 64}));
  EXPECT_EQ(model.units[4].parameters[3].shape, (std::vector<uint64_t>{32, 4}));
  for (const ModelUnit& unit : model.units) EXPECT_EQ(unit.trainable(), unit.name.ends_with("adapters")) << unit.name;
  EXPECT_EQ(model.trained_parameters(), 3u * 4 * (64 + 64 + 64 + 32));
}

TEST(Adapters, WhatRestsInCodesIsMatricesAlone) {
  const Model model = *adapted(kLlama, {.rank = 4, .targets = {"q_proj"}, .base = BlockCode::nf4});
  ASSERT_EQ(model.units.size(), 11u);
  EXPECT_EQ(model.uses[1].units, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(names_of(model.units[2]), (std::vector<std::string>{"model.layers.0.input_layernorm.weight",
                                                                "model.layers.0.post_attention_layernorm.weight"}));
  for (const ModelUnit& unit : model.units) {
    const bool is_block = unit.name.starts_with("block") && unit.name.size() == 7;
    EXPECT_EQ(unit.code.has_value(), is_block) << unit.name;
    for (const ModelParameter& parameter : unit.parameters)
      EXPECT_TRUE(!is_block || parameter.shape.size() == 2) << parameter.name;
  }
  EXPECT_EQ(model.parameters(), adapted(kLlama, {.rank = 4, .targets = {"q_proj"}})->parameters());
}

TEST(Adapters, ATiedHeadFindsItsEmbeddingBehindThem) {
  const Model model = *adapted(kGpt2, {.rank = 2});
  EXPECT_EQ(model.uses.back().units, (std::vector<uint32_t>{5, 0}));
  // gpt2's matrices are input by output.
  const ModelUnit& adapters = model.units[2];
  ASSERT_EQ(adapters.parameters.size(), 8u);
  EXPECT_EQ(adapters.parameters[0].shape, (std::vector<uint64_t>{2, 64}));
  EXPECT_EQ(adapters.parameters[1].shape, (std::vector<uint64_t>{192, 2}));
}

TEST(Adapters, AnExpressionIsForWholeNames) {
  const Model model = *adapted(kLlama, {.rank = 4, .target_pattern = R"(model\.layers\.2\..*(up|down)_proj)"});
  ASSERT_EQ(model.units.size(), 6u);
  EXPECT_EQ(model.units[4].parameters.size(), 4u);
  EXPECT_FALSE(adapted(kLlama, {.rank = 4, .target_pattern = "up_proj"}).ok());
}

TEST(Adapters, ANameIsForModulesOfThatNameAndNotForItsEnd) {
  const auto refused = adapted(kLlama, {.rank = 4, .targets = {"q_proj", "proj"}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("'proj' fits no matrix"), std::string::npos) << refused.status().message();
  EXPECT_NE(refused.status().remedy().find("q_proj, k_proj, v_proj, o_proj"), std::string::npos)
      << refused.status().remedy();
}

TEST(Adapters, ARankIsAtMostTheSmallerSideOfEachMatrix) {
  EXPECT_TRUE(adapted(kLlama, {.rank = 32, .targets = {"k_proj"}}).ok());  // 32 x 64
  const auto refused = adapted(kLlama, {.rank = 33, .targets = {"q_proj", "k_proj"}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("is 33, at most 32 expected"), std::string::npos)
      << refused.status().message();
}

TEST(Adapters, ModulesAreTrainedWhole) {
  const Model model = *adapted(kLlama, {.rank = 4, .targets = {"v_proj"}, .modules_to_save = {"lm_head"}});
  for (const ModelParameter& parameter : model.units.back().parameters)
    EXPECT_EQ(parameter.trainable, parameter.role == WeightRole::head) << parameter.name;
  EXPECT_FALSE(adapted(kGpt2, {.rank = 4, .modules_to_save = {"wte"}}).ok()) << "its head is the same";
}

TEST(Adapters, CountByAlphaAndRank) {
  EXPECT_EQ(scale_of({.rank = 16}), 1);
  EXPECT_EQ(scale_of({.rank = 16, .alpha = 32}), 2);
  EXPECT_EQ(scale_of({.rank = 16, .alpha = 32, .rslora = true}), 8);
}

TEST(Adapters, ABeginsUniformWithinItsBoundAndBWithZeros) {
  const Model model = *adapted(kLlama, {.rank = 32, .targets = {"down_proj"}});
  const ModelUnit& unit = model.units[2];
  std::vector<float> values(unit.elements);
  fill_initial_values(model, 7, 2, 0, values);
  const double bound = 1 / std::sqrt(96.0);
  double sum = 0, squares = 0, most = 0;
  const ModelParameter &a = unit.parameters[0], &b = unit.parameters[1];
  for (uint64_t i = 0; i < a.elements; ++i) {
    const double x = values[a.first_element + i];
    sum += x, squares += x * x, most = std::max(most, std::abs(x));
  }
  const auto n = static_cast<double>(a.elements);
  EXPECT_LE(most, bound);
  EXPECT_GT(most, 0.98 * bound);
  EXPECT_NEAR(sum / n, 0, 4 * bound / std::sqrt(3 * n));
  EXPECT_NEAR(squares / n, bound * bound / 3, 0.05 * bound * bound);
  for (uint64_t i = 0; i < b.elements; ++i) EXPECT_EQ(values[b.first_element + i], 0);
  // In pieces, the same.
  std::vector<float> piece(100);
  fill_initial_values(model, 7, 2, 1000, piece);
  EXPECT_TRUE(std::equal(piece.begin(), piece.end(), values.begin() + 1000));
}

TEST(AdapterFolder, IsReadAsItWasWritten) {
  const LoraConfig lora{
      .rank = 3, .alpha = 7, .dropout = 0.125, .targets = {"q_proj", "up_proj"}, .modules_to_save = {"embed_tokens"}};
  const Model model = *adapted(kLlama, lora);
  const ScratchFolder scratch;
  const std::string folder = scratch.path() + "/adapter";
  std::mt19937 random(11);
  std::vector<std::vector<float>> all;
  {
    auto writer =
        *AdapterFolderWriter::create(folder, adapter_config_json(lora, model, "/base"), model, FileDtype::f32);
    for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
      std::vector<float>& values = all.emplace_back(model.units[unit].elements);
      for (float& x : values) x = static_cast<float>(random() % 1000);
      for (uint64_t first = 0; first < values.size(); first += 300)
        ASSERT_TRUE(
            writer->write(unit, first, std::span(values).subspan(first, std::min<size_t>(300, values.size() - first)))
                .ok());
    }
    ASSERT_FALSE(std::filesystem::exists(folder));
    ASSERT_TRUE(writer->finish().ok());
  }
  EXPECT_EQ(*read_adapter_config(folder), lora);
  const auto read = *AdapterFolder::open(folder, model);
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    std::vector<float> values(model.units[unit].elements, -1.0f);
    ASSERT_TRUE(read->read(unit, 0, values).ok());
    for (const ModelParameter& parameter : model.units[unit].parameters)
      for (uint64_t i = 0; i < parameter.elements; ++i) {
        const uint64_t at = parameter.first_element + i;
        ASSERT_EQ(values[at], parameter.trainable ? all[unit][at] : -1) << parameter.name;
      }
  }
  // Adapters of another shape, and of other modules.
  EXPECT_FALSE(AdapterFolder::open(folder, *adapted(kLlama, {.rank = 4, .targets = {"q_proj", "up_proj"}})).ok());
  EXPECT_FALSE(AdapterFolder::open(folder, *adapted(kLlama, {.rank = 3, .targets = {"q_proj"}})).ok());
  // What a run begins with: the adapter's values over the model's.
  const StartingValues starting = *StartingValues::open(model, "", folder, 5);
  std::vector<float> values(model.units[0].elements);
  ASSERT_TRUE(starting.read(0, 0, values).ok());
  EXPECT_EQ(values[70], all[0][70]);
}

TEST(AdapterFolder, AConfigIsTakenOrRefusedWhateverItHolds) {
  const std::string good =
      adapter_config_json({.rank = 3, .targets = {"q_proj"}}, *adapted(kLlama, {.rank = 3, .targets = {"q_proj"}}), "");
  ASSERT_TRUE(parse_adapter_config(good).ok());
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = good;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = "\"{}[]:,0-9eax"[random() % 13];
    const auto parsed = parse_adapter_config(damaged);
    refused += !parsed.ok();
    if (parsed.ok()) {
      ASSERT_TRUE(parsed->rank >= 1 && parsed->dropout >= 0 && parsed->dropout < 1) << damaged;
    }
  }
  EXPECT_GT(refused, 1000);
}

// PEFT's own defaults count where a file leaves them out.
TEST(AdapterFolder, AConfigThatLeavesOutScaleAndDropoutHasThoseOfPeft) {
  const auto lora = parse_adapter_config(R"({"peft_type": "LORA", "r": 4, "target_modules": ["v_proj", "q_proj"]})");
  ASSERT_TRUE(lora.ok()) << lora.status().message();
  EXPECT_EQ(*lora, (LoraConfig{.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj"}}));
}

TEST(AdapterFolder, ARunThatBeginsWithOneHasItsShapesAndItsDropoutUnlessAnotherIsSaid) {
  const ScratchFolder scratch;
  const LoraConfig theirs{.rank = 3, .alpha = 6, .dropout = 0.25, .targets = {"q_proj"}};
  const Model model = *adapted(kLlama, theirs);
  const std::string folder = scratch.path() + "/adapter";
  ASSERT_TRUE((*AdapterFolderWriter::create(folder, adapter_config_json(theirs, model, ""), model, FileDtype::f32))
                  ->finish()
                  .ok());
  LoraConfig ours{.base = BlockCode::nf4, .adapter = folder};
  ASSERT_TRUE(resolve_adapter(ours).ok());
  LoraConfig expected = theirs;
  expected.base = BlockCode::nf4, expected.adapter = folder;
  EXPECT_EQ(ours, expected);
  ours = {.dropout = 0.5, .adapter = folder};
  ASSERT_TRUE(resolve_adapter(ours).ok());
  EXPECT_EQ(ours.dropout, 0.5);
  EXPECT_EQ(ours.alpha, 6);
  ours = {.rslora = true, .adapter = folder};
  EXPECT_NE(resolve_adapter(ours).message().find("says what of lora is said here, too"), std::string::npos);
}

class Merging : public testing::TestWithParam<const char*> {};

TEST_P(Merging, AddsTheProductOfTheFactorsWhereverTilesAreCut) {
  const Model model =
      *adapted(GetParam(), {.rank = 3, .alpha = 6, .targets = {GetParam() == kGpt2 ? "c_attn" : "k_proj"}});
  AdapterMerge merge(model);
  EXPECT_FALSE(merge.adapters_of(0));
  std::mt19937 random(5);
  for (uint32_t unit : {1u, 3u}) {  // the first two blocks, with factors of their own
    const uint32_t adapters = unit + 1;
    ASSERT_EQ(merge.adapters_of(unit), adapters);
    std::vector<float> factors(model.units[adapters].elements), weights(model.units[unit].elements);
    for (float& x : factors) x = static_cast<float>(random() % 17) - 8;
    for (float& x : weights) x = static_cast<float>(random() % 17) - 8;
    std::vector<float> expected = weights;
    const ModelParameter &a = model.units[adapters].parameters[0], &b = model.units[adapters].parameters[1];
    const auto matrix =
        std::ranges::find_if(model.units[unit].parameters, [&](const ModelParameter& p) { return p.role == a.role; });
    const uint64_t in = a.shape[1], out = b.shape[0];
    for (uint64_t o = 0; o < out; ++o)
      for (uint64_t i = 0; i < in; ++i) {
        float sum = 0;
        for (uint64_t k = 0; k < 3; ++k)
          sum += factors[b.first_element + o * 3 + k] * factors[a.first_element + k * in + i];
        expected[matrix->first_element + (GetParam() == kGpt2 ? i * out + o : o * in + i)] += 2 * sum;
      }
    for (uint64_t first = 0; first < factors.size(); first += 77)
      merge.take(adapters, first, std::span(factors).subspan(first, std::min<size_t>(77, factors.size() - first)));
    for (uint64_t first = 0; first < weights.size(); first += 1001)
      merge.add(unit, first, std::span(weights).subspan(first, std::min<size_t>(1001, weights.size() - first)));
    EXPECT_EQ(weights, expected) << "unit " << unit;  // whole numbers: not a bit is rounded
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Merging, testing::Values(kLlama, kGpt2),
                         [](const auto& model) { return model.param == kGpt2 ? "Gpt2" : "Llama"; });

}  // namespace
}  // namespace penstock::trainer
