#include "tools/penstock/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <sstream>

#include "tools/penstock/version.h"

namespace penstock::tools {
namespace {

std::vector<std::string> words_of(const std::string& name) {
  std::istringstream in(name);
  return {std::istream_iterator<std::string>(in), {}};
}

const char* group_summary(const std::string& group) {
  if (group == "nvme") return "Measure drives as training uses them";
  if (group == "config") return "Look at training files";
  if (group == "checkpoint") return "Look after the state on the drives";
  return "";
}

std::string footer_of(const Verb& verb) {
  std::string footer = verb.details;
  for (const Example& example : verb.examples) {
    footer += text(footer.empty() ? "" : "\n\n", example.what, ":\n  ", example.line);
  }
  return footer;
}

const CLI::App* child_named(const CLI::App& app, const std::string& word) {
  const auto found = app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
  return found.empty() ? nullptr : found.front();
}

// The subcommand that was named last on the line.
const CLI::App& deepest(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : deepest(*chosen.front());
}

std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : path_of(*app.get_parent()) + " " + app.get_name();
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

size_t letters_apart(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = letters_apart(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

CommandLine::CommandLine(std::vector<Verb> verbs)
    : verbs_(std::move(verbs)), root_(std::make_unique<CLI::App>(kTagline, "penstock")) {
  root_->set_version_flag("--version", kVersion);
  root_->get_formatter()->column_width(34);
  root_->require_subcommand(0, 1);
  for (const Verb& verb : verbs_) {
    CLI::App* app = root_.get();
    for (const std::string& word : words_of(verb.name)) {
      if (child_named(*app, word) == nullptr) {
        app->add_subcommand(word, group_summary(word))->require_subcommand(0, 1);
      }
      app = app->get_subcommand(word);
    }
    app->description(verb.summary);
    app->footer(footer_of(verb));
    Options options(*app);
    Action action = verb.define(options);
    app->add_flag("--json", json_, "Print one JSON object on stdout instead of text");
    entries_.push_back({app, &verb, std::move(action)});
  }
}

CommandLine::~CommandLine() = default;

std::string CommandLine::verb_named(const std::vector<std::string>& arguments) const {
  const CLI::App* app = root_.get();
  std::string name;
  for (const std::string& word : arguments) {
    const CLI::App* next = child_named(*app, word);
    if (next == nullptr) break;
    name += (name.empty() ? "" : " ") + word;
    app = next;
  }
  return name;
}

Status CommandLine::refusal_of_extras(const CLI::App& app) const {
  const CLI::App& at = deepest(app);
  std::vector<std::string> extras = root_->remaining(true);
  const std::string word = extras.empty() ? "" : extras.front();
  const bool is_flag = word.starts_with("-");
  const std::string likely = nearest(word, is_flag ? flags_of(at) : verbs_of(at));
  return Status(Code::kUsage, text(is_flag ? "unknown flag: " : "unexpected argument: ", word, ": ", path_of(at)),
                likely.empty() ? path_of(at) + " --help" : likely + " (" + path_of(at) + " --help lists all)");
}

Result<CommandLine::Parsed> CommandLine::parse(const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    root_->parse(reversed);
  } catch (const RefusedValue& refused) {
    return refused.status;
  } catch (const CLI::CallForHelp&) {
    const CLI::App& asked = deepest(*root_);
    const CLI::App* const parent = asked.get_parent();
    return Parsed{nullptr, {}, false, asked.help(parent == nullptr ? "" : path_of(*parent))};
  } catch (const CLI::CallForVersion&) {
    return Parsed{nullptr, {}, false, std::string(kVersion) + "\n"};
  } catch (const CLI::ExtrasError&) {
    return refusal_of_extras(*root_);
  } catch (const CLI::RequiredError& error) {
    const std::string at = path_of(deepest(*root_));
    return Status(Code::kUsage, text("missing argument: ", at, ": ", error.what()), at + " --help");
  } catch (const CLI::ParseError& error) {
    const std::string at = path_of(deepest(*root_));
    return Status(Code::kUsage, text("command line: ", at, ": ", error.what()), at + " --help");
  }
  const CLI::App& chosen = deepest(*root_);
  for (const Entry& entry : entries_) {
    if (entry.app == &chosen) return Parsed{entry.verb, entry.action, json_, {}};
  }
  return Status(Code::kUsage, text("missing verb: ", path_of(chosen), ": nothing said what to do"),
                path_of(chosen) + " --help lists the verbs");
}

}  // namespace penstock::tools
