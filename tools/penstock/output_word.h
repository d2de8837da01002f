// A line that a verb prints, explained in a sentence on its manual page.
#pragma once

#include <string>

namespace penstock::tools {

struct OutputWord {
  std::string line;  // how it begins, behind the name of its tier
  std::string meaning;
};

}  // namespace penstock::tools
