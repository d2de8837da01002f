#include "runtime/trainer/files/model_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/trainer/files/file_io.h"
#include "runtime/trainer/initial_values.h"
#include "tests/trainer/scratch_folder.h"

namespace penstock::trainer {
namespace {

constexpr const char* kConfig = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 131,
    "max_position_embeddings": 64, "torch_dtype": "bfloat16"})";

Model model_of(const char* config) { return make_model(*parse_model_config(config), Dtype::bf16); }

std::vector<float> values_of(const Model& model, uint32_t unit) {
  std::vector<float> values(model.units[unit].elements);
  fill_initial_values(model, 5, unit, 0, values);
  return values;
}

void write_folder(const std::string& folder, const Model& model, const ModelFolderWriter::Options& options) {
  auto writer = *ModelFolderWriter::create(folder, kConfig, model, options);
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    const std::vector<float> values = values_of(model, unit);
    // In pieces that do not keep to parameters.
    for (uint64_t first = 0; first < values.size(); first += 1000)
      ASSERT_TRUE(
          writer->write(unit, first, std::span(values).subspan(first, std::min<size_t>(1000, values.size() - first)))
              .ok());
  }
  ASSERT_FALSE(std::filesystem::exists(folder));
  ASSERT_TRUE(writer->finish().ok());
}

// As many as it takes where each has what follows as long as there is room.
int shards_needed(const Model& model, uint64_t shard_bytes) {
  int shards = 1;
  uint64_t in_this = 0;
  for (const ModelUnit& unit : model.units) {
    for (const ModelParameter& parameter : unit.parameters) {
      const uint64_t own = parameter.elements * sizeof(float);
      if (in_this > 0 && in_this + own > shard_bytes) ++shards, in_this = 0;
      in_this += own;
    }
  }
  return shards;
}

int shards_in(const std::string& folder) {
  int shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    shards += entry.path().extension() == ".safetensors";
  }
  return shards;
}

TEST(ModelFolder, GivesBackWhatWasWrittenWholeOrInShards) {
  const ScratchFolder scratch;
  const Model model = model_of(kConfig);
  for (uint64_t shard_bytes : {uint64_t{1} << 40, uint64_t{100'000}}) {
    const std::string folder = text(scratch.path(), "/", shard_bytes);
    write_folder(folder, model, {.dtype = FileDtype::f32, .shard_bytes = shard_bytes, .carry_from = {}});
    const std::string index = folder + "/model.safetensors.index.json";
    EXPECT_EQ(std::filesystem::exists(index), shard_bytes == 100'000);
    if (shard_bytes == 100'000) {
      const auto listed = nlohmann::json::parse(*read_small_file(index, 1'000'000));
      EXPECT_EQ(listed.at("metadata").at("total_size"), model.parameters() * sizeof(float));
    }
    EXPECT_EQ(shards_in(folder), shards_needed(model, shard_bytes));
    const auto opened = ModelFolder::open(folder, model);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_TRUE((*opened)->unused().empty());
    for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
      const std::vector<float> expected = values_of(model, unit);
      std::vector<float> read(expected.size(), NAN);
      for (uint64_t first = 0; first < read.size(); first += 777)
        ASSERT_TRUE((*opened)
                        ->read(unit, first, std::span(read).subspan(first, std::min<size_t>(777, read.size() - first)))
                        .ok());
      EXPECT_TRUE(read == expected) << model.units[unit].name;
    }
  }
}

TEST(ModelFolder, CarriesTheTokenizerAndSaysTheDtype) {
  const ScratchFolder scratch;
  const Model model = model_of(kConfig);
  const std::string from = scratch.path() + "/from";
  std::filesystem::create_directory(from);
  const std::vector<std::string> carried = {"tokenizer.json",
                                            "tokenizer_config.json",
                                            "tokenizer.model",
                                            "vocab.json",
                                            "merges.txt",
                                            "added_tokens.json",
                                            "chat_template.jinja",
                                            "special_tokens_map.json",
                                            "generation_config.json"};
  for (const std::string& name : carried) std::ofstream(from + "/" + name) << name;
  for (const char* name : {"model.safetensors", "pytorch_model.bin", "notes.txt"})
    std::ofstream(from + "/" + name) << name;
  const std::string folder = scratch.path() + "/to";
  write_folder(folder, model, {.dtype = FileDtype::bf16, .carry_from = from});
  for (const std::string& name : carried) EXPECT_EQ(*read_small_file(folder + "/" + name, 1000), name);
  EXPECT_FALSE(std::filesystem::exists(folder + "/pytorch_model.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/notes.txt"));
  const auto config = nlohmann::json::parse(*read_config_file(folder));
  EXPECT_EQ(config.at("dtype"), "bfloat16");
  EXPECT_FALSE(config.contains("torch_dtype"));
  EXPECT_TRUE(parse_model_config(config.dump()).ok());
}

TEST(ModelFolder, LeavesNothingBehindWhenItWasNotFinished) {
  const ScratchFolder scratch;
  const Model model = model_of(kConfig);
  ModelFolderWriter::create(scratch.path() + "/to", kConfig, model, {})->reset();
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
  EXPECT_FALSE(ModelFolderWriter::create(scratch.path(), kConfig, model, {}).ok());
}

TEST(ModelFolder, RefusesAFolderOfAnotherModelByTheParameter) {
  const ScratchFolder scratch;
  const std::string folder = scratch.path() + "/of";
  write_folder(folder, model_of(kConfig), {.dtype = FileDtype::bf16, .carry_from = {}});
  std::string other = kConfig;
  other.replace(other.find("96"), 2, "80");
  auto refused = ModelFolder::open(folder, model_of(other.c_str()));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("mlp.gate_proj.weight' is 96 x 64, 80 x 64 expected"), std::string::npos)
      << refused.status().message();
  other = kConfig;
  other.replace(other.find("\"num_hidden_layers\": 3"), 22, "\"num_hidden_layers\": 4");
  refused = ModelFolder::open(folder, model_of(other.c_str()));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("model.layers.3."), std::string::npos) << refused.status().message();
  std::filesystem::remove(folder + "/model.safetensors");
  EXPECT_EQ(ModelFolder::open(folder, model_of(kConfig)).status().code(), Code::kUsage);
}

// Folders of GPT-2 and of the first Llamas have masks and frequencies beside the parameters.
TEST(ModelFolder, WhatOlderFilesHaveOfWhatIsComputedIsNotCalledUnused) {
  const ScratchFolder scratch;
  const Model model = model_of(kConfig);
  const std::string folder = scratch.path() + "/old";
  write_folder(folder, model, {.dtype = FileDtype::f32, .shard_bytes = uint64_t{1} << 40, .carry_from = {}});
  std::filesystem::rename(folder + "/model.safetensors", folder + "/one.safetensors");
  auto more = *SafetensorsWriter::create(folder + "/two.safetensors",
                                         {{"h.0.attn.bias", {2}},
                                          {"h.0.attn.masked_bias", {2}},
                                          {"model.layers.0.self_attn.rotary_emb.inv_freq", {2}},
                                          {"lm_head.weight.of_another", {2}}},
                                         FileDtype::f32);
  ASSERT_TRUE(more->finish().ok());
  ASSERT_TRUE(write_small_file(folder + "/model.safetensors.index.json",
                               R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})")
                  .ok());
  const auto opened = ModelFolder::open(folder, model);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->unused(), std::vector<std::string>{"lm_head.weight.of_another"});
}

TEST(InitialValues, DoNotDependOnThePiecesTheyAreMadeIn) {
  const Model model = model_of(kConfig);
  const std::vector<float> whole = values_of(model, 1);
  for (uint64_t first : {uint64_t{0}, uint64_t{63}, uint64_t{130}, uint64_t{5000}}) {
    std::vector<float> piece(700);
    fill_initial_values(model, 5, 1, first, piece);
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST(InitialValues, HaveTheirDeviationAndDifferBySeedUnitAndParameter) {
  const Model model = model_of(kConfig);
  auto drawn = [&](uint64_t seed, uint32_t unit, uint32_t parameter) {
    const ModelParameter& of = model.units[unit].parameters[parameter];
    std::vector<float> values(of.elements);
    fill_initial_values(model, seed, unit, of.first_element, values);
    return values;
  };
  const std::vector<float> tokens = drawn(1, 0, 0);
  double sum = 0, squares = 0;
  for (float value : tokens) sum += value, squares += double(value) * value;
  const double n = static_cast<double>(tokens.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));  // five standard deviations of the mean
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
  EXPECT_NE(drawn(2, 0, 0), tokens);
  EXPECT_NE(drawn(1, 1, 1), drawn(1, 2, 1));
  EXPECT_EQ(drawn(1, 1, 0), std::vector<float>(64, 1.0f));  // a norm's weight
  EXPECT_EQ(drawn(1, 1, 2), std::vector<float>(64, 0.0f));  // a bias
}

}  // namespace
}  // namespace penstock::trainer
