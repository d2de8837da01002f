// adapter_config.json of PEFT's, which says what adapters a run begins with.
#include "runtime/trainer/config/adapters.h"
#include "runtime/trainer/files/adapter_folder.h"
#include "tests/fuzz/target.h"

namespace penstock::fuzz {
namespace {

using trainer::LoraConfig;

constexpr const char* kModel =
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 131, "max_position_embeddings": 64})";

std::vector<Bytes> seeds() {
  return {
      bytes_of(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "use_rslora": true,
          "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"], "bias": "none", "rank_pattern": {}})"),
      bytes_of(R"({"peft_type": "LORA", "r": 4, "target_modules": "all-linear", "modules_to_save": null})"),
      bytes_of(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 0.5, "target_modules": ".*layers\\.1\\..*_proj",
          "use_dora": false, "layers_to_transform": null, "alpha_pattern": {"x": 3}})"),
      // Once taken for a rank of 4294967295.
      bytes_of(R"({"peft_type": "LORA", "r": 18446744073709551615, "target_modules": "all-linear"})"),
  };
}

// What is accepted is a run's config: it is written as PEFT would, and read as the same.
std::string run(std::span<const std::byte> input) {
  const Result<LoraConfig> lora = trainer::parse_adapter_config(text_of(input));
  if (!lora.ok()) return lora.status().message().starts_with("adapter_config.json: ") ? "" : "refused without its name";
  if (lora->rank == 0 || lora->rank > 65536) return "a rank that is none";
  if (!(lora->dropout >= 0 && lora->dropout < 1) || !(*lora->alpha >= 0)) return "a number out of its range";
  // An expression may take as long as it likes, in the standard library.
  if (!lora->target_pattern.empty()) return "";
  trainer::Model model = trainer::make_model(*trainer::parse_model_config(kModel), Dtype::bf16);
  if (!trainer::add_adapters(*lora, kParameterAlignmentElements, model).ok()) return "";
  const auto again = trainer::parse_adapter_config(trainer::adapter_config_json(*lora, model, ""));
  if (!again.ok()) return "what was written is refused: " + again.status().message();
  if (trainer::scale_of(*again) != trainer::scale_of(*lora)) return "another scale";
  return again->rank == lora->rank && again->dropout == lora->dropout ? "" : "another adapter";
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
                                       "\"LORA\"",
                                       "\"all-linear\"",
                                       "\"q_proj\"",
                                       "\"lm_head\"",
                                       "\"none\"",
                                       "peft_type",
                                       "\"r\"",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "use_rslora",
                                       "use_dora",
                                       "target_modules",
                                       "modules_to_save",
                                       "rank_pattern",
                                       "1e309",
                                       "-1",
                                       "0.5"};

}  // namespace

const Target adapter_config{
    .name = "adapter_config", .seeds = seeds, .run = run, .words = kWords, .rounds = 15000, .memory_bytes = 16 * kMiB};

}  // namespace penstock::fuzz
