#include "tools/plan/known_models.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/penstock/command_line.h"
#include "tools/plan/model_config.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kFileBytesMost = uint64_t{16} << 20;

// LLaMA-like, by name and in the order of config.json.
ModelShape llama(const char* name, uint64_t layers, uint64_t hidden, uint64_t heads, uint64_t kv_heads, uint64_t ffn,
                 uint64_t vocab) {
  ModelShape shape;
  shape.name = name;
  shape.layers = layers;
  shape.hidden = hidden;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_size = hidden / heads;
  shape.ffn = ffn;
  shape.vocab = vocab;
  return shape;
}

ModelShape gpt2_named(const char* name, uint64_t layers, uint64_t hidden, uint64_t heads, uint64_t vocab = 50257,
                      uint64_t positions = 1024) {
  ModelShape shape = llama(name, layers, hidden, heads, heads, 4 * hidden, vocab);
  shape.positions = positions;
  shape.gated = false;
  shape.tied = shape.qkv_bias = shape.out_bias = shape.ffn_bias = shape.norm_bias = true;
  return shape;
}

ModelShape without_qkv_bias(ModelShape shape) {
  shape.qkv_bias = false;
  return shape;
}

ModelShape with_qkv_bias(ModelShape shape) {
  shape.qkv_bias = true;
  return shape;
}

ModelShape with_experts(ModelShape shape, uint64_t experts, uint64_t active) {
  shape.experts = experts;
  shape.experts_active = active;
  return shape;
}

// A misspelt name, or meta-llama/Llama-3-8B as the hub has it, first.
std::string with_nearest(const std::string& written, const std::vector<std::string>& names) {
  std::string name = std::filesystem::path(written).filename();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string likely = nearest(name, names);
  return text(likely.empty() ? "" : text("--model ", likely, ", or "), "a Hugging Face config.json, or --model one of ",
              joined(names, ", "));
}

}  // namespace

const std::vector<ModelShape>& known_models() {
  static const std::vector<ModelShape> kModels = {
      gpt2_named("small-gpt", 6, 384, 6, 8192, 512),
      gpt2_named("gpt2", 12, 768, 12),
      gpt2_named("gpt2-medium", 24, 1024, 16),
      gpt2_named("gpt2-large", 36, 1280, 20),
      gpt2_named("gpt2-xl", 48, 1600, 25),
      without_qkv_bias(gpt2_named("gpt-neo-1.3b", 24, 2048, 16, 50257, 2048)),
      without_qkv_bias(gpt2_named("gpt-neo-2.7b", 32, 2560, 20, 50257, 2048)),
      llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
      llama("llama-2-13b", 40, 5120, 40, 40, 13824, 32000),
      llama("llama-2-70b", 80, 8192, 64, 8, 28672, 32000),
      llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256),
      llama("llama-3-70b", 80, 8192, 64, 8, 28672, 128256),
      llama("llama-3-405b", 126, 16384, 128, 8, 53248, 128256),
      llama("mistral-7b", 32, 4096, 32, 8, 14336, 32000),
      with_experts(llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000), 8, 2),
      with_qkv_bias(llama("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064)),
      with_qkv_bias(llama("qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064)),
      with_qkv_bias(llama("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064)),
  };
  return kModels;
}

Result<ModelShape> load_model(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const ModelShape& shape : known_models()) {
    if (shape.name == name_or_path) return shape;
    names.push_back(shape.name);
  }
  std::filesystem::path path = name_or_path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  const auto size = std::filesystem::file_size(path, error);
  if (error || size > kFileBytesMost) {
    return Status(Code::kUsage,
                  text("model: ", name_or_path, error ? ": neither a file nor a known model" : ": not a config.json"),
                  with_nearest(name_or_path, names));
  }
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  Result<ModelShape> shape = parse_model_shape(content.str());
  if (!shape.ok()) return shape.status().within(path);
  return shape;
}

}  // namespace penstock::tools
