#include "tools/plan/model_config.h"

#include "tests/fuzz/target.h"
#include "tests/fuzz/targets/forecasting.h"
#include "tools/machine/shipped_machines.h"

namespace penstock::fuzz {
namespace {

constexpr uint64_t kPlannedParametersMost = 4'000'000, kPlannedLayersMost = 8;

std::vector<Bytes> seeds() {
  return {
      bytes_of(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 256,
          "vocab_size": 500})"),
      bytes_of(R"({"model_type": "gpt_neo", "hidden_size": 768, "num_layers": 12, "num_heads": 12,
          "intermediate_size": null, "max_position_embeddings": 2048, "vocab_size": 50257})"),
      bytes_of(R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
          "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
          "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936})"),
      bytes_of(R"({"model_type": "qwen2_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 64,
          "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true, "vocab_size": 300})"),
      bytes_of(R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 64,
          "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 300}})"),
      bytes_of(R"({"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_kv_heads": 2, "new_decoder_architecture": true, "vocab_size": 300})"),
      bytes_of(R"({"model_type": "bloom", "n_embed": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300})"),
  };
}

// Products of sizes that wrapped around would be smaller than their largest part.
std::string sizes_of(const tools::ModelShape& shape) {
  const auto real = [](uint64_t size) { return static_cast<double>(size); };
  const double ffn = real(shape.experts) * 2 * real(shape.hidden) * real(shape.ffn);
  const double attention = 2.0 * real(shape.hidden) * real(shape.heads + shape.kv_heads) * real(shape.head_size);
  const double vocab = real(shape.hidden) * (real(shape.vocab) + real(shape.positions));
  if (real(shape.parameters()) * 1.0001 < real(shape.layers) * (ffn + attention) + vocab) return "lost parameters";
  if (shape.active_parameters() > shape.parameters()) return "more active parameters than parameters";
  const double activations = 2 * (4.0 * real(shape.hidden) + 2 * real(shape.experts_active) * real(shape.ffn));
  if (real(shape.block_activation_bytes()) * 1.0001 < activations) return "lost activations";
  return shape.block_forward_flops(1) * 1.0001 < 2 * attention ? "lost flops" : "";
}

std::string run(std::span<const std::byte> input) {
  const Result<tools::ModelShape> shape = tools::parse_model_shape(text_of(input));
  if (!shape.ok()) return shape.status().remedy().empty() ? "refused without a way out" : "";
  if (std::string wrong = sizes_of(*shape); !wrong.empty()) return wrong;
  const tools::StepShape step{
      .tokens = 1 << 20, .sequence = 2048, .micro_batches = 4, .ranks = 8, .device_flops = 1e12};
  if (tools::training_units(*shape, step).size() != shape->layers + 2) return "another number of units";
  if (shape->parameters() > kPlannedParametersMost || shape->layers > kPlannedLayersMost) return "";
  tools::ForecastRequest request = request_of(*shape, shipped_profiles().front());
  request.tokens = 4096;
  request.sequence = 128;
  return predict(request);
}

constexpr std::string_view kWords[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "null",
                                       "true",
                                       "false",
                                       "\"x\"",
                                       "model_type",
                                       "\"gpt2\"",
                                       "\"gpt_neo\"",
                                       "\"qwen2\"",
                                       "\"qwen3\"",
                                       "n_embd",
                                       "n_inner",
                                       "hidden_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "head_dim",
                                       "intermediate_size",
                                       "num_experts",
                                       "num_local_experts",
                                       "num_experts_per_tok",
                                       "vocab_size",
                                       "mlp_bias",
                                       "tie_word_embeddings",
                                       "max_position_embeddings",
                                       "num_layers",
                                       "num_heads",
                                       "attention_bias",
                                       "num_key_value_heads"};

}  // namespace

const Target model_config{
    .name = "model_config", .seeds = seeds, .run = run, .words = kWords, .rounds = 15000, .memory_bytes = 64 * kMiB};

}  // namespace penstock::fuzz
