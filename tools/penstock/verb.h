// A verb of the command. Its definition is the one source of its flags, --help, man page and shell completion. Its
// answer is printed as text or, with --json, as one object.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tiering/status.h"
#include "tools/penstock/options.h"
#include "tools/penstock/output_word.h"
#include "tools/penstock/progress.h"

namespace penstock::tools {

using Json = nlohmann::ordered_json;

struct Answer {
  std::string text;  // for people, on stdout
  Json json = Json::object();
  // A verb may have an answer and still end badly: a comparison that failed, a drive that cannot be used.
  Status verdict;
  bool is_for_rank_0 = false;  // this is another rank: nothing is printed
};

// What a running verb may use of the command around it.
struct Session {
  Progress& progress;
  // Puts a part of the answer's text on stdout at once, for verbs that run for long. Answer::text then has the rest.
  // Does nothing with --json.
  std::function<void(const std::string&)> print = [](const std::string&) {};
  // With --json, what stdout gets of work that an interruption ends at once.
  std::string interrupted_answer = {};
};

using Action = std::function<Result<Answer>(Session&)>;

struct Example {
  std::string line;
  std::string what;
};

struct Verb {
  std::string name;  // "doctor", "nvme probe"
  std::string summary;
  std::string details;  // paragraphs for --help and the man page
  std::vector<Example> examples;
  // Declares the verb's flags and returns what runs once they are filled in.
  std::function<Action(Options&)> define;
  std::vector<OutputWord> output = {};  // for the man page
};

}  // namespace penstock::tools
