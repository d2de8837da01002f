// Models by name: well-known ones, and any that a config.json describes.
#pragma once

#include <string>
#include <vector>

#include "tiering/status.h"
#include "tools/plan/model_shape.h"

namespace penstock::tools {

// The first is the built-in small GPT that is planned where no model is given.
const std::vector<ModelShape>& known_models();

// A file, a folder with a config.json, or a known model's name.
Result<ModelShape> load_model(const std::string& name_or_path);

}  // namespace penstock::tools
