#include "tools/plan/model_config.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace penstock::tools {
namespace {

using nlohmann::json;

constexpr uint64_t kSizeMost = uint64_t{1} << 24;
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

}  // namespace penstock::tools
