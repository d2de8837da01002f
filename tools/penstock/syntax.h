// What the command accepts, read back from its parser as plain data. Man pages and shell completion are made from it,
// so they always agree with --help.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace penstock::tools {

struct SyntaxOption {
  std::string name;  // "--depth", or "PATH" for an argument
  std::string value_name;
  std::string default_text;
  std::string help;
  std::vector<std::string> choices;
  bool argument = false;
  bool required = false;
  bool takes_value = false;
  bool takes_path = false;
  bool repeats = false;
};

struct SyntaxVerb {
  std::string name;  // "" for the command itself, "nvme probe"
  std::string summary;
  std::string details;
  std::vector<SyntaxOption> options;
  std::vector<std::string> subverbs;
};

// The command first, then every verb in order, groups of verbs included.
std::vector<SyntaxVerb> syntax_of(const CLI::App& root);

}  // namespace penstock::tools
