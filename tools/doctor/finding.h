// What the doctor finds: the fact, what follows from it for training, and the command that changes it.
#pragma once

#include <string>
#include <vector>

namespace penstock::tools {

enum class Level {
  good,     // as it should be
  note,     // works; something would be better
  problem,  // something will not work
};

constexpr const char* name_of(Level level) {
  switch (level) {
    case Level::good:
      return "good";
    case Level::note:
      return "note";
    case Level::problem:
      return "problem";
  }
  return "?";
}

struct Finding {
  std::string subject;
  Level level = Level::good;
  std::string found;
  std::string follows;
  std::string fix;  // exact commands; empty when there is nothing to change
};

using Findings = std::vector<Finding>;

}  // namespace penstock::tools
