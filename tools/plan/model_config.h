// Model shapes from Hugging Face's config.json.
#pragma once

#include <string>

#include "tiering/status.h"
#include "tools/plan/model_shape.h"

namespace penstock::tools {

// gpt2, gpt_neo, and all that name their sizes as LLaMA does: llama, mistral, mixtral, qwen2, qwen3, their mixtures.
Result<ModelShape> parse_model_config(const std::string& json);

}  // namespace penstock::tools
