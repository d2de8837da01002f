// The adapters that a model gets by its run's config: LoRA (Hu et al. 2021), as PEFT has it.
//
// The model's own weights are frozen. Each matrix that is chosen gets two factors, A [rank, in] and B [out, rank], and
// its product with x becomes x W^T + scale (dropout(x) A^T) B^T. The factors of a block are a unit of their own, which
// the block's use names behind the block's. Where the block's matrices rest in codes (QLoRA), its norms and biases are
// a unit between the two.
#pragma once

#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/model.h"

namespace penstock::trainer {

// alpha / rank, or alpha / sqrt(rank).
double scale_of(const LoraConfig& lora);

// Freezes the model, adds adapters, and marks the modules that are trained whole. `alignment_elements` as in
// make_model(). Refuses a target that no matrix of a block is, and modules that cannot be trained.
// REQUIRES: lora.rank > 0.
Status add_adapters(const LoraConfig& lora, uint64_t alignment_elements, Model& model);

// "model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.weight".
std::string module_of(const ModelParameter& parameter);

}  // namespace penstock::trainer
