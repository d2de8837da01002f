// Model shapes from Hugging Face's config.json, and those of well-known models by name.
#pragma once

#include <string>
#include <vector>

#include "tiering/status.h"
#include "tools/plan/model_shape.h"

namespace penstock::tools {

// gpt2, gpt_neo, and all that name their sizes as LLaMA does: llama, mistral, mixtral, qwen2, qwen3, their mixtures.
Result<ModelShape> parse_model_config(const std::string& json);

// Shapes by name; the first is the built-in small GPT that is planned where no model is given.
const std::vector<ModelShape>& known_models();

// A file or a known model's name.
Result<ModelShape> load_model(const std::string& name_or_path);

}  // namespace penstock::tools
