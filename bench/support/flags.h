// Flags of a benchmark, declared as the command's verbs declare theirs (tools/penstock/options.h). Every benchmark also
// has --quick, --json and --help; any other argument is refused.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/penstock/options.h"

namespace penstock::bench {

class Flags {
 public:
  // `question` is what the benchmark answers.
  Flags(const std::string& bench, const std::string& question);
  ~Flags();

  tools::Options& options() { return options_; }
  // The one argument that a benchmark of one drive takes.
  void folder(std::string& into, const std::string& help);
  // Several, after spaces or commas; what stands in `into` is the default. A name without dashes is an argument.
  void folders(const std::string& name, std::vector<std::string>& into, const std::string& help);
  // Several words, separated by commas, that mean a number each.
  void numbers(const std::string& name, std::vector<double>& into, const std::map<std::string, double>& words,
               const std::string& help);

  // Fills in what was declared. Ends the program where --help was asked for (0) or the line is refused (2).
  void parse(int argc, char** argv);

  bool quick() const { return quick_; }
  bool json() const { return json_; }

 private:
  std::unique_ptr<CLI::App> app_;
  tools::Options options_;
  bool quick_ = false;
  bool json_ = false;
};

}  // namespace penstock::bench
