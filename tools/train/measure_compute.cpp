#include "tools/train/measure_compute.h"

#include <algorithm>

#include "runtime/trainer/model_config.h"
#include "runtime/trainer/torch/cuda_accelerator.h"
#include "runtime/trainer/torch/dry_step.h"
#include "runtime/trainer/torch/host_accelerator.h"
#include "tools/plan/model_config.h"
#include "tools/system/interrupt.h"

namespace penstock::tools {
namespace {

constexpr int kRounds = 5;

// A Llama of two blocks, so wide that its products are what takes the time, and so small that it is soon done.
struct Size {
  int width = 0, inner = 0, heads = 0;
  int32_t sequence = 0;
};
constexpr Size kOnTheCpu{.width = 1024, .inner = 2816, .heads = 16, .sequence = 512};
constexpr Size kOnAGpu{.width = 4096, .inner = 11008, .heads = 32, .sequence = 4096};

std::string config_of(const Size& size) {
  return text(R"({"model_type": "llama", "hidden_size": )", size.width, R"(, "intermediate_size": )", size.inner,
              R"(, "num_hidden_layers": 2, "num_attention_heads": )", size.heads, R"(, "num_key_value_heads": )",
              size.heads, R"(, "vocab_size": 512, "max_position_embeddings": )", size.sequence,
              R"(, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true})");
}

trainer::MicroBatch any_tokens(int32_t sequence) {
  trainer::MicroBatch batch;
  batch.sequences = 1;
  batch.length = sequence;
  for (int32_t place = 0; place < sequence; ++place) {
    batch.tokens.push_back(place % 512);
    batch.targets.push_back((place + 1) % 512);
  }
  return batch;
}

// A GPU where LibTorch computes on one, as a run does.
Result<std::shared_ptr<trainer::Accelerator>> open_accelerator(bool on_gpu) {
  if (on_gpu) return trainer::open_cuda_accelerator({});
  return std::shared_ptr<trainer::Accelerator>(std::make_shared<trainer::HostAccelerator>());
}

// Forward and backward of a block, without recomputation.
double block_seconds(const trainer::Model& model, const trainer::DryStep& dry) {
  for (size_t use = 0; use < model.uses.size(); ++use) {
    if (model.uses[use].kind == trainer::UseKind::block) return dry.uses[use].forward_s + dry.uses[use].backward_s;
  }
  return 0;
}

Result<Answer> measure() {
  const bool on_gpu = trainer::cuda_usable(0).ok();
  const Size& size = on_gpu ? kOnAGpu : kOnTheCpu;
  PENSTOCK_TRY_ASSIGN(config, trainer::parse_model_config(config_of(size)));
  PENSTOCK_TRY_ASSIGN(shape, parse_model_shape(config_of(size)));
  const trainer::Model model = trainer::make_model(config, Dtype::bf16, kParameterAlignmentElements);
  const trainer::MicroBatch batch = any_tokens(size.sequence);
  PENSTOCK_TRY_ASSIGN(accelerator, open_accelerator(on_gpu));
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    PENSTOCK_TRY(check_interrupted());
    PENSTOCK_TRY_ASSIGN(dry, trainer::dry_step(model, *accelerator, {}, {&batch, 1}, trainer::Keeping::in_memory));
    seconds.push_back(block_seconds(model, dry));
  }
  std::ranges::sort(seconds);
  const double flops = 3 * shape.block_forward_flops(size.sequence) * static_cast<double>(size.sequence);
  Answer answer;
  answer.json = {{"computed_on", accelerator->description()},
                 {"on_gpu", on_gpu},
                 {"device_flops", flops / seconds[kRounds / 2]},
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
