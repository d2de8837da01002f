#include "runtime/trainer/model_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

namespace penstock::trainer {
namespace {

using nlohmann::json;

constexpr uint64_t kSizeMost = uint64_t{1} << 24;
constexpr uint64_t kLayersMost = uint64_t{1} << 14;
constexpr const char* kSupported =
    "supported are GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM";

// Reads values by key; the first refusal is remembered, and what is read after it does not matter.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const char* key) const { return find(key) != nullptr; }

  uint32_t size(const char* key) {
    const json* value = find(key);
    if (value == nullptr) {
      refuse(key, "is missing");
      return 1;
    }
    if (value->is_number_unsigned() && value->get<uint64_t>() >= 1 && value->get<uint64_t>() <= kSizeMost)
      return value->get<uint32_t>();
    refuse(key, text("is ", value->dump(), ", expected a whole number from 1 to ", kSizeMost));
    return 1;
  }
  uint32_t size_or(const char* key, uint32_t otherwise) { return has(key) ? size(key) : otherwise; }

  double number(const char* key, double least, double most) {
    const json* value = find(key);
    if (value != nullptr && value->is_number()) {
      const double number = value->get<double>();
      if (number >= least && number <= most) return number;
    }
    refuse(key, text(value == nullptr ? "is missing" : "is " + value->dump(), ", expected a number from ", least,
                     " to ", most));
    return least;
  }
  double number_or(const char* key, double otherwise, double least, double most) {
    return has(key) ? number(key, least, most) : otherwise;
  }

  bool flag_or(const char* key, bool otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(key, text("is ", value->dump(), ", expected true or false"));
    return value->is_boolean() ? value->get<bool>() : otherwise;
  }

  std::string word_or(const char* key, const std::string& otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) refuse(key, text("is ", value->dump(), ", expected a word"));
    return value->is_string() ? value->get<std::string>() : otherwise;
  }

  void refuse(const char* key, const std::string& why) {
    if (status_.ok()) status_ = Status(Code::kUsage, text(where_, ": ", key, ": ", why));
  }
  void adopt(const Reader& other) {
    if (status_.ok()) status_ = other.status_;
  }
  const Status& status() const { return status_; }

 private:
  const json& object_;
  std::string where_;
  Status status_;
};

double yarn_attention_factor(Reader& rope, double factor) {
  auto scale = [](double by, double factor_of) { return factor_of <= 1 ? 1.0 : 0.1 * by * std::log(factor_of) + 1.0; };
  const double given = rope.number_or("attention_factor", 0, 0, 1e6);
  if (given > 0) return given;
  const double all = rope.number_or("mscale_all_dim", 0, 0, 1e6), some = rope.number_or("mscale", 0, 0, 1e6);
  return all > 0 && some > 0 ? scale(some, factor) / scale(all, factor) : scale(1, factor);
}

// transformers 5 has everything in "rope_parameters"; before it, theta stood outside and the rest in "rope_scaling".
Rope read_rope(Reader& config, uint32_t positions) {
  static const json nothing = json::object();
  const json* parameters = config.find("rope_parameters");
  if (parameters == nullptr) parameters = config.find("rope_scaling");
  if (parameters != nullptr && !parameters->is_object())
    config.refuse("rope_parameters", text("is ", parameters->dump(), ", expected an object"));
  const bool given = parameters != nullptr && parameters->is_object();
  Reader scaling(given ? *parameters : nothing, "config.json: rope_parameters");

  Rope rope;
  rope.theta = scaling.has("rope_theta") ? scaling.number("rope_theta", 1, 1e12)
                                         : config.number_or("rope_theta", 10000, 1, 1e12);
  if (scaling.number_or("partial_rotary_factor", config.number_or("partial_rotary_factor", 1, 0, 1), 0, 1) != 1)
    scaling.refuse("partial_rotary_factor", "only 1 is supported: every element of a head is rotated");
  const std::string kind = scaling.word_or("rope_type", scaling.word_or("type", "default"));
  if (kind != "default") {
    rope.original_positions = scaling.number_or("original_max_position_embeddings", positions, 1, kSizeMost);
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

std::vector<uint32_t> read_windows(Reader& config, uint32_t layers, bool all_layers) {
  const bool on = all_layers || config.flag_or("use_sliding_window", false);
  const uint32_t window = on ? config.size_or("sliding_window", 0) : 0;
  std::vector<uint32_t> windows(layers, all_layers ? window : 0);
  if (all_layers || window == 0) return windows;
  if (const json* types = config.find("layer_types")) {
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
  const uint32_t full = config.find("max_window_layers") == nullptr ? 28 : config.size_or("max_window_layers", 28);
  for (uint32_t layer = full; layer < layers; ++layer) windows[layer] = window;
  return windows;
}

ModelConfig read_llama(Reader& config, const std::string& architecture) {
  const bool mistral = architecture == "MistralForCausalLM", qwen2 = architecture == "Qwen2ForCausalLM",
             qwen3 = architecture == "Qwen3ForCausalLM";
  ModelConfig model;
  model.block = BlockKind::llama;
  model.layers = config.size("num_hidden_layers");
  model.hidden = config.size("hidden_size");
  model.heads = config.size("num_attention_heads");
  model.kv_heads = config.size_or("num_key_value_heads", model.heads);
  model.head_size = config.size_or("head_dim", qwen3 ? 128 : std::max(1u, model.hidden / model.heads));
  model.ffn = config.size("intermediate_size");
  model.vocab = config.size("vocab_size");
  model.positions = config.size("max_position_embeddings");
  model.norm_epsilon = config.number_or("rms_norm_eps", 1e-6, 0, 1);
  const std::string act = config.word_or("hidden_act", "silu");
  if (act != "silu") config.refuse("hidden_act", text("'", act, "' is not supported; silu is"));
  model.tied = config.flag_or("tie_word_embeddings", false);
  model.qkv_bias = qwen2 || config.flag_or("attention_bias", false);
  model.out_bias = !qwen2 && config.flag_or("attention_bias", false);
  model.ffn_bias = config.flag_or("mlp_bias", false);
  model.qk_norm = qwen3;
  model.rope = read_rope(config, model.positions);
  if (model.layers <= kLayersMost) model.windows = read_windows(config, model.layers, mistral);
  model.attention_scales.assign(model.layers <= kLayersMost ? model.layers : 0, 1 / std::sqrt(double(model.head_size)));
  model.attention_dropout = config.number_or("attention_dropout", 0, 0, 0.999);
  if (model.head_size % 2 != 0)
    config.refuse("head_dim", text("is ", model.head_size, ", an even number expected: positions rotate pairs"));
  return model;
}

ModelConfig read_gpt2(Reader& config) {
  ModelConfig model;
  model.block = BlockKind::gpt2;
  model.layers = config.size("n_layer");
  model.hidden = config.size("n_embd");
  model.heads = model.kv_heads = config.size("n_head");
  model.head_size = std::max(1u, model.hidden / model.heads);
  model.ffn = config.size_or("n_inner", 4 * std::min<uint32_t>(model.hidden, kSizeMost));
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
  if (model.layers <= kLayersMost) {
    model.windows.assign(model.layers, 0);
    const double scale = config.flag_or("scale_attn_weights", true) ? 1 / std::sqrt(double(model.head_size)) : 1;
    const bool by_layer = config.flag_or("scale_attn_by_inverse_layer_idx", false);
    for (uint32_t layer = 0; layer < model.layers; ++layer)
      model.attention_scales.push_back(by_layer ? scale / (layer + 1) : scale);
  }
  if (model.hidden % model.heads != 0)
    config.refuse("n_embd", text("is ", model.hidden, ", a multiple of n_head ", model.heads, " expected"));
  return model;
}

Result<std::string> architecture_of(const json& config) {
  const auto names = config.find("architectures");
  if (names != config.end() && names->is_array() && names->size() == 1 && (*names)[0].is_string())
    return (*names)[0].get<std::string>();
  const auto type = config.find("model_type");
  if (type != config.end() && type->is_string()) {
    for (const auto& [name, architecture] : {std::pair("gpt2", "GPT2LMHeadModel"),
                                             {"llama", "LlamaForCausalLM"},
                                             {"mistral", "MistralForCausalLM"},
                                             {"qwen2", "Qwen2ForCausalLM"},
                                             {"qwen3", "Qwen3ForCausalLM"}})
      if (*type == name) return std::string(architecture);
    return type->get<std::string>();
  }
  return Status(Code::kUsage, "config.json: names neither an architecture nor a model_type", kSupported);
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& text_of_config) {
  const json config = json::parse(text_of_config, nullptr, false);
  if (!config.is_object()) return Status(Code::kUsage, "config.json: is not a JSON object");
  PENSTOCK_TRY_ASSIGN(architecture, architecture_of(config));
  Reader reader(config, "config.json");
  ModelConfig model;
  if (architecture == "GPT2LMHeadModel") {
    model = read_gpt2(reader);
  } else if (architecture == "LlamaForCausalLM" || architecture == "MistralForCausalLM" ||
             architecture == "Qwen2ForCausalLM" || architecture == "Qwen3ForCausalLM") {
    model = read_llama(reader, architecture);
  } else {
    return Status(Code::kUsage, text("config.json: architecture '", architecture, "' is not supported"), kSupported);
  }
  model.architecture = architecture;
  model.initializer_range = reader.number_or("initializer_range", 0.02, 0, 100);
  if (model.layers > kLayersMost)
    reader.refuse("num_hidden_layers", text("is ", model.layers, ", at most ", kLayersMost, " expected"));
  if (model.kv_heads > model.heads || model.heads % model.kv_heads != 0)
    reader.refuse("num_key_value_heads",
                  text("is ", model.kv_heads, ", a divisor of the ", model.heads, " heads expected"));
  PENSTOCK_TRY(reader.status());
  return model;
}

// In fp32 where transformers computes in fp32: the angles of long sequences depend on it.
std::vector<float> rope_frequencies(const ModelConfig& config, uint64_t length) {
  const Rope& rope = config.rope;
  const uint32_t dims = config.head_size, pairs = dims / 2;
  double base = rope.theta;
  if (rope.kind == RopeKind::dynamic) {
    const double reach = std::max(double(length), rope.original_positions);
    base *= std::pow(rope.factor * reach / rope.original_positions - (rope.factor - 1), dims / (dims - 2.0));
  }
  std::vector<float> frequencies(pairs);
  for (uint32_t pair = 0; pair < pairs; ++pair)
    frequencies[pair] = 1.0f / std::pow(float(base), float(2 * pair) / float(dims));

  if (rope.kind == RopeKind::linear) {
    for (float& frequency : frequencies) frequency /= float(rope.factor);
  } else if (rope.kind == RopeKind::llama3) {
    for (float& frequency : frequencies) {
      const double wave = 2 * std::numbers::pi / frequency;
      if (wave > rope.original_positions / rope.low_frequency_factor) {
        frequency /= float(rope.factor);
      } else if (wave >= rope.original_positions / rope.high_frequency_factor) {
        const double smooth = (rope.original_positions / wave - rope.low_frequency_factor) /
                              (rope.high_frequency_factor - rope.low_frequency_factor);
        frequency = float((1 - smooth) * frequency / rope.factor + smooth * frequency);
      }
    }
  } else if (rope.kind == RopeKind::yarn) {
    auto dimension_of = [&](double rotations) {
      return dims * std::log(rope.original_positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
    };
    double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
    if (rope.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, dims - 1.0);
    if (low == high) high += 0.001;
    for (uint32_t pair = 0; pair < pairs; ++pair) {
      const double stretched = std::clamp((pair - low) / (high - low), 0.0, 1.0);
      frequencies[pair] = float(frequencies[pair] / rope.factor * stretched + frequencies[pair] * (1 - stretched));
    }
  }
  return frequencies;
}

}  // namespace penstock::trainer
