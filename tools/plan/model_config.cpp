#include "tools/plan/model_config.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace penstock::tools {
namespace {

using nlohmann::json;

constexpr uint64_t kSizeMost = uint64_t{1} << 24;
constexpr uint64_t kFileBytesMost = uint64_t{16} << 20;
constexpr const char* kRemedy = "give a config.json of Hugging Face, or --params and --layers";

// Reads sizes by key; the first that is missing or nonsense is remembered.
class Config {
 public:
  explicit Config(const json& config) : config_(config) {}

  uint64_t size(const char* key) { return read(key, std::nullopt); }
  uint64_t size_or(const char* key, uint64_t otherwise) { return read(key, otherwise); }
  bool flag_or(const char* key, bool otherwise) const {
    const auto found = config_.find(key);
    return found != config_.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  }
  std::string word_or(const char* key, const std::string& otherwise) const {
    const auto found = config_.find(key);
    return found != config_.end() && found->is_string() ? found->get<std::string>() : otherwise;
  }
  const Status& status() const { return status_; }

 private:
  uint64_t read(const char* key, std::optional<uint64_t> otherwise) {
    const auto found = config_.find(key);
    if (found == config_.end() || found->is_null()) {
      if (!otherwise) refuse(key, "is missing");
      return otherwise.value_or(1);
    }
    if (found->is_number_unsigned() && found->get<uint64_t>() <= kSizeMost) return found->get<uint64_t>();
    refuse(key, "is not a size");
    return 1;
  }

  void refuse(const char* key, const char* why) {
    if (status_.ok()) status_ = Status(Code::kUsage, text("model config: ", key, ": ", why), kRemedy);
  }

  const json& config_;
  Status status_;
};

ModelShape gpt2(Config& config) {
  ModelShape shape;
  shape.layers = config.size("n_layer");
  shape.hidden = config.size("n_embd");
  shape.heads = shape.kv_heads = config.size("n_head");
  shape.ffn = config.size_or("n_inner", 4 * shape.hidden);
  shape.positions = config.size("n_positions");
  shape.qkv_bias = true;
  return shape;
}

ModelShape gpt_neo(Config& config) {
  ModelShape shape;
  shape.layers = config.size("num_layers");
  shape.hidden = config.size("hidden_size");
  shape.heads = shape.kv_heads = config.size("num_heads");
  shape.ffn = config.size_or("intermediate_size", 4 * shape.hidden);
  shape.positions = config.size("max_position_embeddings");
  return shape;
}

ModelShape gpt(const std::string& type, Config& config) {
  ModelShape shape = type == "gpt2" ? gpt2(config) : gpt_neo(config);
  shape.gated = false;
  shape.out_bias = shape.ffn_bias = shape.norm_bias = true;
  shape.tied = config.flag_or("tie_word_embeddings", true);
  return shape;
}

ModelShape llama_like(const std::string& type, Config& config) {
  ModelShape shape;
  shape.layers = config.size("num_hidden_layers");
  shape.hidden = config.size("hidden_size");
  shape.heads = config.size("num_attention_heads");
  shape.kv_heads = config.size_or("num_key_value_heads", shape.heads);
  shape.head_size = config.size_or("head_dim", 0);
  shape.ffn = config.size("intermediate_size");
  shape.tied = config.flag_or("tie_word_embeddings", false);
  const bool bias = config.flag_or("attention_bias", false);
  shape.qkv_bias = bias || type.starts_with("qwen2");
  shape.out_bias = bias;
  shape.ffn_bias = config.flag_or("mlp_bias", false);
  shape.qk_norm = type.starts_with("qwen3");
  shape.experts = config.size_or("num_local_experts", config.size_or("num_experts", 1));
  shape.experts_active = config.size_or("num_experts_per_tok", 1);
  if (shape.experts > 1) shape.ffn = config.size_or("moe_intermediate_size", shape.ffn);
  shape.shared_ffn = config.size_or("shared_expert_intermediate_size", 0);
  shape.shared_gate = shape.shared_ffn > 0;
  return shape;
}

Status check(const ModelShape& shape) {
  const bool empty = shape.layers == 0 || shape.hidden == 0 || shape.heads == 0 || shape.kv_heads == 0 ||
                     shape.head_size == 0 || shape.ffn == 0 || shape.vocab == 0 || shape.experts == 0;
  if (!empty && shape.experts_active >= 1 && shape.experts_active <= shape.experts) return Status();
  return Status(Code::kUsage, "model config: a size is 0, or more experts are active than there are", kRemedy);
}

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

}  // namespace

Result<ModelShape> parse_model_config(const std::string& content) {
  const json parsed = json::parse(content, nullptr, false);
  if (!parsed.is_object()) return Status(Code::kUsage, "model config: not a JSON object", kRemedy);
  Config config(parsed);
  const std::string type = config.word_or("model_type", "");
  ModelShape shape = type == "gpt2" || type == "gpt_neo" ? gpt(type, config) : llama_like(type, config);
  shape.vocab = config.size("vocab_size");
  shape.name = config.word_or("_name_or_path", "");
  if (shape.name.empty()) shape.name = type.empty() ? "model" : type;
  PENSTOCK_TRY(config.status());
  if (shape.head_size == 0 && shape.heads > 0) shape.head_size = shape.hidden / shape.heads;
  PENSTOCK_TRY(check(shape));
  PENSTOCK_TRY(shape.validate());
  return shape;
}

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
  std::string names;
  for (const ModelShape& shape : known_models()) {
    if (shape.name == name_or_path) return shape;
    names += " " + shape.name;
  }
  std::filesystem::path path = name_or_path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  const auto size = std::filesystem::file_size(path, error);
  if (error || size > kFileBytesMost) {
    return Status(Code::kUsage,
                  text("model: ", name_or_path, error ? ": neither a file nor a known model" : ": is no config.json"),
                  "a config.json of Hugging Face, or one of" + names);
  }
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  Result<ModelShape> shape = parse_model_config(content.str());
  if (!shape.ok()) return shape.status().within(path);
  return shape;
}

}  // namespace penstock::tools
