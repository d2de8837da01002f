#include "tools/plan/model_config.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace penstock::tools {
namespace {

using nlohmann::json;

constexpr uint64_t kSizeMost = uint64_t{1} << 24;
constexpr const char* kRemedy = "give a Hugging Face config.json, or --params 7e9 --layers 32 instead of --model";

// Reads sizes by key, and remembers the first that is missing or invalid.
class Config {
 public:
  explicit Config(json config) : config_(std::move(config)) {}

  uint64_t size(const char* key) { return read(key, std::nullopt); }
  uint64_t size_or(const char* key, uint64_t otherwise) { return read(key, otherwise); }
  bool has(const char* key) const { return config_.contains(key) && !config_.at(key).is_null(); }
  bool flag_or(const char* key, bool otherwise) const {
    const auto found = config_.find(key);
    return found != config_.end() && found->is_boolean() ? found->get<bool>() : otherwise;
  }
  std::string word_or(const char* key, const std::string& otherwise) const {
    const auto found = config_.find(key);
    return found != config_.end() && found->is_string() ? found->get<std::string>() : otherwise;
  }
  void refuse(const char* key, const std::string& why) {
    if (status_.ok()) status_ = Status(Code::kUsage, text("model config: ", key, ": ", why), kRemedy);
  }
  const Status& status() const { return status_; }

 private:
  uint64_t read(const char* key, std::optional<uint64_t> otherwise) {
    const auto found = config_.find(key);
    if (found == config_.end() || found->is_null()) {
      if (!otherwise) refuse(key, "missing");
      return otherwise.value_or(1);
    }
    if (found->is_number_unsigned() && found->get<uint64_t>() <= kSizeMost) return found->get<uint64_t>();
    const std::string written = found->is_number() ? found->dump() : std::string(found->type_name());
    refuse(key, text(written, ": a whole number up to ", kSizeMost, " expected"));
    return 1;
  }

  const json config_;
  Status status_;
};

void add_experts(ModelShape& shape, Config& config) {
  shape.experts = config.size_or("num_local_experts", config.size_or("num_experts", 1));
  shape.experts_active = config.size_or("num_experts_per_tok", 1);
  if (shape.experts > 1) shape.ffn = config.size_or("moe_intermediate_size", shape.ffn);
  shape.shared_ffn = config.size_or("shared_expert_intermediate_size", 0);
  shape.shared_gate = shape.shared_ffn > 0;
  if (config.size_or("decoder_sparse_step", 1) != 1)
    config.refuse("decoder_sparse_step", "only 1 is supported (experts in every block)");
}

ModelShape llama(Config& config) {
  ModelShape shape;
  shape.layers = config.size("num_hidden_layers");
  shape.hidden = config.size("hidden_size");
  shape.heads = config.size("num_attention_heads");
  shape.kv_heads = config.size_or("num_key_value_heads", shape.heads);
  shape.head_size = config.size_or("head_dim", 0);
  shape.ffn = config.size("intermediate_size");
  shape.qkv_bias = shape.out_bias = config.flag_or("attention_bias", false);
  shape.ffn_bias = config.flag_or("mlp_bias", false);
  add_experts(shape, config);
  return shape;
}

ModelShape qwen2(Config& config) {
  ModelShape shape = llama(config);
  shape.qkv_bias = true;
  shape.out_bias = false;
  return shape;
}

ModelShape qwen3(Config& config) {
  ModelShape shape = llama(config);
  shape.qk_norm = true;
  return shape;
}

// Norms before and behind both parts of a block.
ModelShape gemma2(Config& config) {
  ModelShape shape = llama(config);
  shape.norms = 4;
  return shape;
}

ModelShape gemma3(Config& config) {
  ModelShape shape = gemma2(config);
  shape.qk_norm = true;
  return shape;
}

// The families before LLaMA: two matrices in the ffn, norms with a bias.
ModelShape older(uint64_t layers, uint64_t hidden, uint64_t heads, uint64_t ffn) {
  ModelShape shape;
  shape.layers = layers;
  shape.hidden = hidden;
  shape.heads = shape.kv_heads = heads;
  shape.ffn = ffn;
  shape.gated = false;
  shape.norm_bias = shape.ffn_bias = true;
  return shape;
}

ModelShape gptj(Config& config) {
  const uint64_t hidden = config.size("n_embd");
  ModelShape shape =
      older(config.size("n_layer"), hidden, config.size("n_head"), config.size_or("n_inner", 4 * hidden));
  shape.norms = 1;
  shape.head_bias = true;
  return shape;
}

ModelShape gpt2(Config& config) {
  ModelShape shape = gptj(config);
  shape.norms = 2;
  shape.head_bias = false;
  shape.positions = config.size("n_positions");
  shape.qkv_bias = shape.out_bias = true;
  return shape;
}

ModelShape gpt_neo(Config& config) {
  const uint64_t hidden = config.size("hidden_size");
  ModelShape shape = older(config.size("num_layers"), hidden, config.size("num_heads"),
                           config.size_or("intermediate_size", 4 * hidden));
  shape.positions = config.size("max_position_embeddings");
  shape.out_bias = true;
  return shape;
}

ModelShape gpt_neox(Config& config) {
  ModelShape shape = older(config.size("num_hidden_layers"), config.size("hidden_size"),
                           config.size("num_attention_heads"), config.size("intermediate_size"));
  shape.qkv_bias = shape.out_bias = config.flag_or("attention_bias", true);
  return shape;
}

ModelShape phi(Config& config) {
  ModelShape shape = gpt_neox(config);
  shape.kv_heads = config.size_or("num_key_value_heads", shape.heads);
  shape.norms = 1;
  shape.head_bias = true;
  if (config.flag_or("qk_layernorm", false)) config.refuse("qk_layernorm", "unsupported");
  return shape;
}

ModelShape opt(Config& config) {
  ModelShape shape = older(config.size("num_hidden_layers"), config.size("hidden_size"),
                           config.size("num_attention_heads"), config.size("ffn_dim"));
  shape.positions = config.size("max_position_embeddings") + 2;  // the first two are padding
  shape.qkv_bias = shape.out_bias = true;
  if (config.size_or("word_embed_proj_dim", shape.hidden) != shape.hidden) {
    config.refuse("word_embed_proj_dim", "only the value of hidden_size is supported");
  }
  return shape;
}

ModelShape bloom(Config& config) {
  const uint64_t hidden = config.size(config.has("hidden_size") ? "hidden_size" : "n_embed");
  ModelShape shape = older(config.size(config.has("n_layer") ? "n_layer" : "num_hidden_layers"), hidden,
                           config.size(config.has("n_head") ? "n_head" : "num_attention_heads"), 4 * hidden);
  shape.embedding_norm = true;
  shape.qkv_bias = shape.out_bias = true;
  return shape;
}

ModelShape falcon(Config& config) {
  const uint64_t hidden = config.size("hidden_size");
  ModelShape shape = older(config.size("num_hidden_layers"), hidden, config.size("num_attention_heads"),
                           config.size_or("ffn_hidden_size", 4 * hidden));
  const bool newer = config.flag_or("new_decoder_architecture", false);
  if (newer) shape.kv_heads = config.size_or("num_kv_heads", shape.heads);
  if (!newer && config.flag_or("multi_query", true)) shape.kv_heads = 1;
  if (!newer && config.flag_or("parallel_attn", true)) shape.norms = 1;
  shape.norms = config.size_or("num_ln_in_parallel_attn", shape.norms);
  shape.qkv_bias = shape.out_bias = shape.ffn_bias = config.flag_or("bias", false);
  return shape;
}

struct Family {
  const char* model_type;
  ModelShape (*read)(Config&);
  json left_out = json::object();  // what a config.json leaves out, as the model's class has it
};

const std::vector<Family>& families() {
  static const json kTied = {{"tie_word_embeddings", true}};
  static const json kMistral = {{"num_key_value_heads", 8u}}, kQwen3 = {{"head_dim", 128u}};
  static const json kGemma = {{"tie_word_embeddings", true}, {"head_dim", 256u}};
  static const json kGemma2 = {{"tie_word_embeddings", true}, {"head_dim", 256u}, {"num_key_value_heads", 4u}};
  static const json kGemma3 = {{"tie_word_embeddings", true},
                               {"head_dim", 256u},
                               {"num_attention_heads", 8u},
                               {"num_key_value_heads", 4u},
                               {"vocab_size", 262'208u}};
  static const std::vector<Family> kFamilies = {
      {"llama", llama},
      {"mistral", llama, kMistral},
      {"mixtral", llama, kMistral},
      {"phi3", llama},
      {"granite", llama},
      {"qwen2", qwen2},
      {"qwen2_moe", qwen2},
      {"qwen2_vl", qwen2},
      {"qwen2_5_vl", qwen2},
      {"qwen2_vl_text", qwen2},
      {"qwen2_5_vl_text", qwen2},
      {"qwen3", qwen3, kQwen3},
      {"qwen3_moe", qwen3},
      {"gemma", llama, kGemma},
      {"gemma2", gemma2, kGemma2},
      {"gemma3_text", gemma3, kGemma3},
      {"gpt2", gpt2, kTied},
      {"gpt_neo", gpt_neo, kTied},
      {"gpt_neox", gpt_neox},
      {"gptj", gptj},
      {"phi", phi},
      {"opt", opt, kTied},
      {"bloom", bloom, kTied},
      {"falcon", falcon, kTied},
  };
  return kFamilies;
}

// A config.json without a type is read as LLaMA's, after which most name their sizes.
Result<const Family*> family_of(const std::string& type) {
  std::string known;
  for (const Family& family : families()) {
    if (type == family.model_type || type.empty()) return &family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  return Status(
      Code::kUsage, text("model config: model_type: '", type, "': unsupported"),
      "for a model like LLaMA, --params, --layers and the other sizes instead of --model; supported: " + known);
}

Status check(const ModelShape& shape) {
  const bool empty = shape.layers == 0 || shape.hidden == 0 || shape.heads == 0 || shape.kv_heads == 0 ||
                     shape.head_size == 0 || shape.ffn == 0 || shape.vocab == 0 || shape.experts == 0;
  if (!empty && shape.experts_active >= 1 && shape.experts_active <= shape.experts) return Status();
  return Status(Code::kUsage, "model config: a size is 0, or more experts are active than there are", kRemedy);
}

}  // namespace

Result<ModelShape> parse_model_shape(const std::string& content) {
  const json parsed = json::parse(content, nullptr, false);
  if (!parsed.is_object()) return Status(Code::kUsage, "model config: not a JSON object", kRemedy);
  // Models that also see or hear have their text part in an object of its own.
  const auto nested = parsed.find("text_config");
  const bool is_part = nested != parsed.end() && nested->is_object();
  const Config whole(parsed);
  const json& given = is_part ? *nested : parsed;
  PENSTOCK_TRY_ASSIGN(family, family_of(Config(given).word_or("model_type", "")));
  json complete = family->left_out;
  complete.update(given);
  Config config(std::move(complete));
  ModelShape shape = family->read(config);
  shape.vocab = config.size("vocab_size");
  shape.tied = config.flag_or("tie_word_embeddings", whole.flag_or("tie_word_embeddings", false));
  PENSTOCK_TRY(config.status());
  shape.name = whole.word_or("_name_or_path", "");
  if (shape.name.empty()) shape.name = whole.word_or("model_type", "model");
  if (is_part || parsed.contains("vision_config")) shape.name += " (its text part)";
  if (shape.head_size == 0 && shape.heads > 0) {
    shape.head_size = shape.hidden / shape.heads;
    if (shape.hidden % shape.heads != 0) {
      return Status(Code::kUsage,
                    text("model config: hidden_size ", shape.hidden, " is not a multiple of the ", shape.heads,
                         " attention heads"),
                    "set head_dim if the heads have a size of their own");
    }
  }
  if (const auto quantization = parsed.find("quantization_config");
      quantization != parsed.end() && !quantization->is_null()) {
    const std::string method =
        quantization->is_object() ? Config(*quantization).word_or("quant_method", "unknown") : "unknown";
    shape.note =
        text("the model's quantization (", method, ") is ignored: every weight is counted in bf16 and trained");
  }
  PENSTOCK_TRY(check(shape));
  PENSTOCK_TRY(shape.validate());
  return shape;
}

}  // namespace penstock::tools
