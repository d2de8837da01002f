// Scripts that complete the command's verbs, flags, choices and paths in a shell.
#pragma once

#include <string>
#include <vector>

#include "tools/penstock/syntax.h"

namespace penstock::tools {

std::string bash_completion(const std::vector<SyntaxVerb>& verbs);
std::string zsh_completion(const std::vector<SyntaxVerb>& verbs);
std::string fish_completion(const std::vector<SyntaxVerb>& verbs);

}  // namespace penstock::tools
