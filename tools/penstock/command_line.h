// CommandLine turns verbs into a parser, and a command line into a verb that is ready to run.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/penstock/verb.h"

namespace penstock::tools {

class CommandLine {
 public:
  explicit CommandLine(std::vector<Verb> verbs);
  ~CommandLine();

  struct Parsed {
    const Verb* verb = nullptr;  // nothing when `help` or the version was asked for
    Action action;
    bool json = false;
    std::string help;
    bool json_progress = false;
  };

  // A refusal names the flag, and the nearest known one. REQUIRES: called once.
  Result<Parsed> parse(const std::vector<std::string>& arguments);

  // The verb that the arguments mean, as far as can be told before or without parse(); "" for none.
  std::string verb_named(const std::vector<std::string>& arguments) const;

  // The parser, for whoever writes it down as a man page or a completion.
  const CLI::App& root() const { return *root_; }
  const std::vector<Verb>& verbs() const { return verbs_; }

 private:
  struct Entry {
    CLI::App* app;
    const Verb* verb;
    Action action;
  };

  std::string verb_within_a_group(const std::string& word) const;
  Status refusal_of_extras(const CLI::App& app) const;

  const std::vector<Verb> verbs_;
  std::unique_ptr<CLI::App> root_;
  std::vector<Entry> entries_;
  bool json_ = false;
  std::string progress_ = "auto";
};

// The candidate that differs from `word` in the fewest letters, if it is close enough to be meant, or the first that
// has `word` in it: "h200" means "8h200-8gen5". Else "".
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace penstock::tools
