// Runs another program and returns its output.
#pragma once

#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock::tools {

// The program's stdout. A program that is missing, that is killed or that ends badly is a refusal with the end of its
// stderr. A signal to this process reaches the other one too.
Result<std::string> run_program(const std::vector<std::string>& words);

}  // namespace penstock::tools
