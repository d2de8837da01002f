#include "tools/train/measure_compute.h"

#include <algorithm>

#include "runtime/trainer/model_config.h"
#include "runtime/trainer/torch/dry_step.h"
#include "runtime/trainer/torch/host_accelerator.h"
#include "tools/plan/model_config.h"
#include "tools/system/interrupt.h"

namespace penstock::tools {
namespace {

// A Llama of two blocks, so wide that its products are what takes the time, and so small that it is soon done.
constexpr const char* kBlock = R"({"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
  "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 512,
  "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true})";
constexpr int64_t kSequence = 512;
constexpr int kRounds = 5;

trainer::MicroBatch any_tokens() {
  trainer::MicroBatch batch;
  batch.sequences = 1;
  batch.length = kSequence;
  for (int32_t token = 0; token < kSequence; ++token) {
    batch.tokens.push_back(token);
    batch.targets.push_back((token + 1) % static_cast<int32_t>(kSequence));
  }
  return batch;
}

// Forward and backward of a block, without recomputation.
double block_seconds(const trainer::Model& model, const trainer::DryStep& dry) {
  for (size_t use = 0; use < model.uses.size(); ++use) {
    if (model.uses[use].kind == trainer::UseKind::block) return dry.uses[use].forward_s + dry.uses[use].backward_s;
  }
  return 0;
}

Result<Answer> measure() {
  PENSTOCK_TRY_ASSIGN(config, trainer::parse_model_config(kBlock));
  PENSTOCK_TRY_ASSIGN(shape, parse_model_shape(kBlock));
  const trainer::Model model = trainer::make_model(config, Dtype::bf16, kParameterAlignmentElements);
  const trainer::MicroBatch batch = any_tokens();
  trainer::HostAccelerator accelerator;
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    PENSTOCK_TRY(check_interrupted());
    PENSTOCK_TRY_ASSIGN(dry, trainer::dry_step(model, accelerator, {}, {&batch, 1}, trainer::Keeping::in_memory));
    seconds.push_back(block_seconds(model, dry));
  }
  std::ranges::sort(seconds);
  const double flops = 3 * shape.block_forward_flops(kSequence) * static_cast<double>(kSequence);
  Answer answer;
  answer.json = {{"device_flops", flops / seconds[kRounds / 2]},
                 {"device_flops_least", flops / seconds.back()},
                 {"device_flops_most", flops / seconds.front()}};
  return answer;
}

}  // namespace

Verb measure_verb() {
  return {"measure", "Measure how fast a block is computed", "", {}, [](Options&) -> Action {
            return [](Session&) { return measure(); };
          }};
}

}  // namespace penstock::tools
