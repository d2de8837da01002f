#include "runtime/trainer/model_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/trainer/model_json.h"

namespace penstock::trainer {
namespace {

using nlohmann::json;

double yarn_attention_factor(ModelJson& rope, double factor) {
  auto scale = [](double by, double factor_of) { return factor_of <= 1 ? 1.0 : 0.1 * by * std::log(factor_of) + 1.0; };
  const double given = rope.number_or("attention_factor", 0, 0, 1e6);
  if (given > 0) return given;
  const double all = rope.number_or("mscale_all_dim", 0, 0, 1e6), some = rope.number_or("mscale", 0, 0, 1e6);
  return all > 0 && some > 0 ? scale(some, factor) / scale(all, factor) : scale(1, factor);
}

// `parameters`: null where the config has none. `theta`: where they do not say it.
Rope read_rope(ModelJson& config, const json* parameters, uint32_t positions, double theta) {
  static const json nothing = json::object();
  if (parameters != nullptr && !parameters->is_object())
    config.refuse("rope_parameters", text("is ", parameters->dump(), ", expected an object"));
  const bool given = parameters != nullptr && parameters->is_object();
  ModelJson scaling(given ? *parameters : nothing, "config.json: rope_parameters");

  Rope rope;
  rope.theta = scaling.number_or("rope_theta", theta, 1, 1e12);
  if (scaling.number_or("partial_rotary_factor", config.number_or("partial_rotary_factor", 1, 0, 1), 0, 1) != 1)
    scaling.refuse("partial_rotary_factor", "only 1 is supported: every element of a head is rotated");
  const std::string kind = scaling.word_or("rope_type", scaling.word_or("type", "default"));
  if (kind != "default") {
    rope.original_positions = scaling.number_or("original_max_position_embeddings", positions, 1, ModelJson::kSizeMost);
    if (kind == "yarn" && !scaling.has("factor"))
      rope.factor = positions / rope.original_positions;
    else
      rope.factor = scaling.number("factor", 1e-3, 1e6);
  }
  if (kind == "default") {
    rope.kind = RopeKind::plain;
  } else if (kind == "linear") {
    rope.kind = RopeKind::linear;
  } else if (kind == "dynamic") {
    rope.kind = RopeKind::dynamic;
    rope.original_positions = positions;
  } else if (kind == "llama3") {
    rope.kind = RopeKind::llama3;
    rope.low_frequency_factor = scaling.number("low_freq_factor", 1e-6, 1e6);
    rope.high_frequency_factor = scaling.number("high_freq_factor", 1e-6, 1e6);
    if (rope.high_frequency_factor <= rope.low_frequency_factor)
      scaling.refuse("high_freq_factor", text("is ", rope.high_frequency_factor, ", more than low_freq_factor ",
                                              rope.low_frequency_factor, " expected"));
  } else if (kind == "yarn") {
    rope.kind = RopeKind::yarn;
    rope.beta_fast = scaling.number_or("beta_fast", 32, 1e-6, 1e6);
    rope.beta_slow = scaling.number_or("beta_slow", 1, 1e-6, 1e6);
    rope.truncate = scaling.flag_or("truncate", true);
    rope.attention_factor = yarn_attention_factor(scaling, rope.factor);
  } else {
    scaling.refuse("rope_type", text("'", kind, "' is not supported; default, linear, dynamic, yarn and llama3 are"));
  }
  config.adopt(scaling);
  return rope;
}

// transformers 5 has everything in "rope_parameters"; before it, theta stood outside and the rest in "rope_scaling".
Rope read_rope(ModelJson& config, uint32_t positions) {
  const json* parameters = config.find("rope_parameters");
  if (parameters == nullptr) parameters = config.find("rope_scaling");
  return read_rope(config, parameters, positions, config.number_or("rope_theta", 10000, 1, 1e12));
}

// By layer: `window` where "layer_types" says sliding_attention, 0 where it says full_attention. None where it is
// absent.
std::optional<std::vector<uint32_t>> windows_by_type(ModelJson& config, uint32_t layers, uint32_t window) {
  const json* types = config.find("layer_types");
  if (types == nullptr) return std::nullopt;
  std::vector<uint32_t> windows(layers, 0);
  if (!types->is_array() || types->size() != layers) {
    config.refuse("layer_types", text("expected a list of ", layers));
    return windows;
  }
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const json& type = (*types)[layer];
    if (type == "sliding_attention")
      windows[layer] = window;
    else if (type != "full_attention")
      config.refuse("layer_types", text(type.dump(), " is not supported; full_attention and sliding_attention are"));
  }
  return windows;
}

void refuse_odd_heads(ModelJson& config, const ModelConfig& model) {
  if (model.head_size % 2 != 0)
    config.refuse("head_dim", text("is ", model.head_size, ", an even number expected: positions rotate pairs"));
}

// What Llama, Mistral and Qwen have in common. `head_size`: where the config has none; 0: that of equal parts of
// `hidden`.
ModelConfig read_llama_like(ModelJson& config, uint32_t head_size = 0) {
  ModelConfig model;
  model.block = BlockKind::llama;
  model.layers = config.layers("num_hidden_layers");
  model.hidden = config.size("hidden_size");
  model.heads = config.size("num_attention_heads");
  model.kv_heads = config.size_or("num_key_value_heads", model.heads);
  model.head_size = config.size_or("head_dim", head_size > 0 ? head_size : std::max(1u, model.hidden / model.heads));
  model.ffn = config.size("intermediate_size");
  model.vocab = config.size("vocab_size");
  model.positions = config.size("max_position_embeddings");
  model.norm_epsilon = config.number_or("rms_norm_eps", 1e-6, 0, 1);
  const std::string act = config.word_or("hidden_act", "silu");
  if (act != "silu") config.refuse("hidden_act", text("'", act, "' is not supported; silu is"));
  model.tied = config.flag_or("tie_word_embeddings", false);
  model.qkv_bias = model.out_bias = config.flag_or("attention_bias", false);
  model.ffn_bias = config.flag_or("mlp_bias", false);
  model.rope = read_rope(config, model.positions);
  model.windows.assign(model.layers, 0);
  model.attention_scales.assign(model.layers, 1 / std::sqrt(double(model.head_size)));
  model.attention_dropout = config.number_or("attention_dropout", 0, 0, 0.999);
  refuse_odd_heads(config, model);
  return model;
}

ModelConfig read_llama(ModelJson& config) { return read_llama_like(config); }

// A window of null is none, one that is not said is as the models' classes have it.
uint32_t read_window(ModelJson& config) {
  return config.size_or("sliding_window", config.names("sliding_window") ? 0 : 4096);
}

// What MistralConfig has where a key is missing.
ModelConfig read_mistral(ModelJson& config) {
  ModelConfig model = read_llama_like(config);
  if (!config.names("num_key_value_heads")) model.kv_heads = 8;
  model.windows.assign(model.layers, read_window(config));
  return model;
}

// Where windows are on, and no types of layers are said: the layers from "max_window_layers" on have them.
std::vector<uint32_t> read_qwen_windows(ModelJson& config, uint32_t layers) {
  std::vector<uint32_t> windows(layers, 0);
  const bool on = config.flag_or("use_sliding_window", false);
  const uint32_t window = on ? read_window(config) : 0;
  if (window == 0) return windows;
  if (const auto by_type = windows_by_type(config, layers, window)) return *by_type;
  for (uint32_t layer = config.size_or("max_window_layers", 28); layer < layers; ++layer) windows[layer] = window;
  return windows;
}

ModelConfig read_qwen2(ModelJson& config) {
  ModelConfig model = read_llama_like(config);
  model.qkv_bias = true;
  model.out_bias = false;
  model.windows = read_qwen_windows(config, model.layers);
  return model;
}

ModelConfig read_qwen3(ModelJson& config) {
  ModelConfig model = read_llama_like(config, /*head_size=*/128);
  model.qk_norm = true;
  model.windows = read_qwen_windows(config, model.layers);
  return model;
}

// Which layers see a window only, where no types of layers are said: all but every `every`th.
std::vector<uint32_t> read_gemma_windows(ModelJson& config, uint32_t layers, uint32_t every) {
  const uint32_t window = config.size_or("sliding_window", 4096);
  if (const auto by_type = windows_by_type(config, layers, window)) return *by_type;
  std::vector<uint32_t> windows(layers, window);
  for (uint32_t layer = every - 1; layer < layers; layer += every) windows[layer] = 0;
  return windows;
}

// Before transformers 5, layers without a window had "rope_theta" and "rope_scaling", and those with one
// "rope_local_base_freq".
void read_gemma3_ropes(ModelJson& config, ModelConfig& model) {
  constexpr double kTheta = 1e6, kWindowTheta = 10000;
  const json* both = config.find("rope_parameters");
  const bool by_type =
      both != nullptr && both->is_object() && (both->contains("full_attention") || both->contains("sliding_attention"));
  if (both != nullptr && !by_type && !both->empty())
    config.refuse("rope_parameters", text("is ", both->dump(), ", expected full_attention and sliding_attention"));
  auto of_type = [&](const char* type) -> const json* {
    if (!by_type) return nullptr;
    const auto found = both->find(type);
    return found == both->end() || found->is_null() ? nullptr : &*found;
  };
  const json* full = by_type ? of_type("full_attention") : config.find("rope_scaling");
  model.rope = read_rope(config, full, model.positions, config.number_or("rope_theta", kTheta, 1, 1e12));
  model.window_rope = read_rope(config, of_type("sliding_attention"), model.positions,
                                config.number_or("rope_local_base_freq", kWindowTheta, 1, 1e12));
}

enum class Gemma : uint8_t { second, third };

ModelConfig read_gemma(ModelJson& config, Gemma generation) {
  const bool third = generation == Gemma::third;
  ModelConfig model;
  model.block = BlockKind::llama;
  model.layers = config.layers("num_hidden_layers");
  model.hidden = config.size("hidden_size");
  model.heads = config.size("num_attention_heads");
  model.kv_heads = config.size_or("num_key_value_heads", 4);
  model.head_size = config.size_or("head_dim", 256);
  model.ffn = config.size("intermediate_size");
  model.vocab = config.size("vocab_size");
  model.positions = config.size_or("max_position_embeddings", third ? 131072 : 8192);
  model.norm_epsilon = config.number_or("rms_norm_eps", 1e-6, 0, 1);
  const std::string act = config.word_or("hidden_activation", "gelu_pytorch_tanh");
  if (act != "gelu_pytorch_tanh")
    config.refuse("hidden_activation", text("'", act, "' is not supported; gelu_pytorch_tanh is"));
  model.activation = Activation::gelu_tanh;
  model.tied = config.flag_or("tie_word_embeddings", true);
  model.qkv_bias = model.out_bias = config.flag_or("attention_bias", false);
  model.qk_norm = third;
  model.norms_behind = model.norms_less_one = true;
  model.embedding_scale = std::sqrt(double(model.hidden));
  model.logit_softcap = config.softcap("final_logit_softcapping", third ? 0 : 30);
  model.attention_softcap = config.softcap("attn_logit_softcapping", third ? 0 : 50);
  if (third && model.attention_softcap > 0)
    config.refuse("attn_logit_softcapping",
                  text("is ", model.attention_softcap, ", null expected: the model's own class leaves it out"));
  if (config.flag_or("use_bidirectional_attention", false))
    config.refuse("use_bidirectional_attention", "is not supported: a token sees those before it only");
  if (third)
    read_gemma3_ropes(config, model);
  else
    model.rope = read_rope(config, model.positions);
  model.attention_dropout = config.number_or("attention_dropout", 0, 0, 0.999);
  const double scale = 1 / std::sqrt(config.number_or("query_pre_attn_scalar", 256, 1e-6, 1e12));
  const uint32_t every = third ? config.size_or("sliding_window_pattern", 6) : 2;
  model.windows = read_gemma_windows(config, model.layers, every);
  model.attention_scales.assign(model.layers, scale);
  refuse_odd_heads(config, model);
  return model;
}

ModelConfig read_gemma2(ModelJson& config) { return read_gemma(config, Gemma::second); }
ModelConfig read_gemma3(ModelJson& config) { return read_gemma(config, Gemma::third); }

ModelConfig read_gpt2(ModelJson& config) {
  ModelConfig model;
  model.block = BlockKind::gpt2;
  model.layers = config.layers("n_layer");
  model.hidden = config.size("n_embd");
  model.heads = model.kv_heads = config.size("n_head");
  model.head_size = std::max(1u, model.hidden / model.heads);
  model.ffn = config.size_or("n_inner", 4 * std::min<uint32_t>(model.hidden, ModelJson::kSizeMost));
  model.vocab = config.size("vocab_size");
  model.positions = config.size("n_positions");
  model.norm_epsilon = config.number_or("layer_norm_epsilon", 1e-5, 0, 1);
  const std::string act = config.word_or("activation_function", "gelu_new");
  if (act == "gelu_new" || act == "gelu_pytorch_tanh")
    model.activation = Activation::gelu_tanh;
  else if (act == "gelu")
    model.activation = Activation::gelu;
  else
    config.refuse("activation_function",
                  text("'", act, "' is not supported; gelu_new, gelu_pytorch_tanh and gelu are"));
  model.tied = config.flag_or("tie_word_embeddings", true);
  model.embedding_dropout = config.number_or("embd_pdrop", 0.1, 0, 0.999);
  model.attention_dropout = config.number_or("attn_pdrop", 0.1, 0, 0.999);
  model.residual_dropout = config.number_or("resid_pdrop", 0.1, 0, 0.999);
  if (config.flag_or("add_cross_attention", false)) config.refuse("add_cross_attention", "is not supported");
  model.windows.assign(model.layers, 0);
  const double scale = config.flag_or("scale_attn_weights", true) ? 1 / std::sqrt(double(model.head_size)) : 1;
  const bool by_layer = config.flag_or("scale_attn_by_inverse_layer_idx", false);
  for (uint32_t layer = 0; layer < model.layers; ++layer)
    model.attention_scales.push_back(by_layer ? scale / (layer + 1) : scale);
  if (model.hidden % model.heads != 0)
    config.refuse("n_embd", text("is ", model.hidden, ", a multiple of n_head ", model.heads, " expected"));
  return model;
}

struct Family {
  const char* architecture;
  const char* model_type;
  ModelConfig (*read)(ModelJson& config);
};
constexpr Family kFamilies[] = {
    {"GPT2LMHeadModel", "gpt2", read_gpt2},           {"LlamaForCausalLM", "llama", read_llama},
    {"MistralForCausalLM", "mistral", read_mistral},  {"Qwen2ForCausalLM", "qwen2", read_qwen2},
    {"Qwen3ForCausalLM", "qwen3", read_qwen3},        {"Gemma2ForCausalLM", "gemma2", read_gemma2},
    {"Gemma3ForCausalLM", "gemma3_text", read_gemma3}};

std::string supported() {
  std::string names;
  const size_t last = std::size(kFamilies) - 1;
  for (size_t i = 0; i <= last; ++i) names += text(i == 0 ? "" : i == last ? " and " : ", ", kFamilies[i].architecture);
  return "supported are " + names;
}

// The first word of "architectures", or where there is none, "model_type".
Result<const Family*> family_of(const json& config) {
  const auto names = config.find("architectures");
  const auto type = config.find("model_type");
  const bool has_name = names != config.end() && names->is_array() && names->size() == 1 && (*names)[0].is_string();
  if (!has_name && (type == config.end() || !type->is_string()))
    return Status(Code::kUsage, "config.json: names neither an architecture nor a model_type", supported());
  const auto word = has_name ? (*names)[0].get<std::string>() : type->get<std::string>();
  for (const Family& family : kFamilies)
    if (word == (has_name ? family.architecture : family.model_type)) return &family;
  return Status(Code::kUsage, text("config.json: architecture '", word, "' is not supported"), supported());
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& text_of_config) {
  const json config = json::parse(text_of_config, nullptr, false);
  if (!config.is_object()) return Status(Code::kUsage, "config.json: is not a JSON object");
  PENSTOCK_TRY_ASSIGN(family, family_of(config));
  ModelJson values(config, "config.json");
  ModelConfig model = family->read(values);
  model.architecture = family->architecture;
  model.initializer_range = values.number_or("initializer_range", 0.02, 0, 100);
  if (model.kv_heads > model.heads || model.heads % model.kv_heads != 0)
    values.refuse("num_key_value_heads",
                  text("is ", model.kv_heads, ", a divisor of the ", model.heads, " heads expected"));
  PENSTOCK_TRY(values.status());
  return model;
}

}  // namespace penstock::trainer
