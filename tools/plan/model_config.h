// Model shapes from Hugging Face's config.json.
#pragma once

#include <string>

#include "tiering/status.h"
#include "tools/plan/model_shape.h"

namespace penstock::tools {

// Of the families that it knows, all parameters are counted; others are refused. Of a model that sees or hears besides,
// only the text part is, and the name says so.
Result<ModelShape> parse_model_shape(const std::string& json);

}  // namespace penstock::tools
