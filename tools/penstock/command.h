// The command: parses its line, runs one verb, prints the answer or the error, and returns the exit code.
#pragma once

#include <string>
#include <vector>

#include "tools/penstock/verb.h"

namespace penstock::tools {

int run_command(const std::vector<Verb>& verbs, const std::vector<std::string>& arguments);

// Every verb there is.
std::vector<Verb> all_verbs();

}  // namespace penstock::tools
