// A prompt that a run answers while it goes on, as a config or a file of prompts has it.
#pragma once

#include <string>

#include "tiering/status.h"

namespace penstock::trainer {

// The JSON of a prompt: a string, {"text": ...} or {"messages": [...]}. Returns it in one form, however it was written;
// refuses what is none of these.
Result<std::string> parse_prompt(const std::string& written);

}  // namespace penstock::trainer
