#include "tools/penstock/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "tiering/letters_apart.h"
#include "tools/penstock/version.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr size_t kColumns = 80, kHelpColumn = 34;

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

// Paragraphs are parted by empty lines; an indented line keeps its form.
std::string filled(const std::string& details) {
  std::string all, paragraph;
  auto end = [&] { all += wrapped(std::exchange(paragraph, ""), kColumns, 0); };
  for (const std::string& line : split(details, '\n')) {
    if (line.empty() || line.starts_with("  ")) {
      end();
      if (!all.empty()) all += "\n";
      all += line;
      continue;
    }
    if (paragraph.empty() && !all.empty()) all += "\n";
    paragraph += (paragraph.empty() ? "" : " ") + line;
  }
  end();
  return all;
}

// What the parser prints of arguments, flags and verbs, each with its help in the second column.
std::string in_columns(const std::string& help) {
  std::string all;
  for (const std::string& line : split(help, '\n')) {
    const bool is_entry = line.starts_with("  ") && !line.starts_with("  penstock ");
    all += (is_entry ? wrapped(line, kColumns, kHelpColumn) : line) + "\n";
  }
  return all;
}

std::string footer_of(const Verb& verb) {
  std::string footer = filled(verb.details);
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

// What people type out of habit from git, ls and fio, and what it is called here.
std::string known_elsewhere(const std::string& word) {
  static const std::map<std::string, std::string> kHere = {{"-V", "--version"},
                                                           {"-v", "--version"},
                                                           {"version", "--version"},
                                                           {"help", "--help"},
                                                           {"man", "manual"},
                                                           {"--bs", "--block"},
                                                           {"--rw", "--read-share"},
                                                           {"--iodepth", "--depth"},
                                                           {"--ioengine", "--engine"},
                                                           {"--runtime", "--duration"},
                                                           {"list", "ls"},
                                                           {"show", "ls"},
                                                           {"delete", "rm"},
                                                           {"remove", "rm"},
                                                           {"save", "snapshot"},
                                                           {"restore", "rollback"},
                                                           {"verify", "scrub"},
                                                           {"check", "scrub"},
                                                           {"--output", "--out"},
                                                           {"-o", "--out"},
                                                           {"-n", "--steps"},
                                                           {"--learning-rate", "--lr"},
                                                           {"--epochs", "--steps"},
                                                           {"--batch-size", "--sequences"},
                                                           {"--max-steps", "--steps"}};
  const auto found = kHere.find(word);
  return found == kHere.end() ? "" : found->second;
}

// A value that stands where its flag was forgotten: `plan llama-3-8b`, `completion zsh`.
std::optional<std::string> flag_that_takes(const CLI::App& app, const std::string& word) {
  std::string only;
  size_t takers = 0;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_type_size() == 0) continue;
    const std::string name = "--" + option->get_lnames().front();
    const std::vector<std::string> choices = split(option->get_type_name(), '|');
    if (std::find(choices.begin(), choices.end(), word) != choices.end()) only = name, ++takers;
  }
  if (takers == 1) return only;
  const std::vector<std::string> flags = flags_of(app);
  if (std::find(flags.begin(), flags.end(), "--model") == flags.end()) return std::nullopt;
  return "--model";
}

constexpr size_t kPartLeast = 4;  // letters

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
  if (!best.empty() || word.size() < kPartLeast) return best;
  const auto whole = std::ranges::find_if(
      candidates, [&](const std::string& candidate) { return candidate.find(word) != std::string::npos; });
  return whole == candidates.end() ? best : *whole;
}

CommandLine::CommandLine(std::vector<Verb> verbs)
    : verbs_(std::move(verbs)), root_(std::make_unique<CLI::App>(kTagline, "penstock")) {
  root_->set_version_flag("--version", kVersion);
  root_->get_formatter()->column_width(kHelpColumn);
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
    options.choice("--progress", progress_, {"auto", "json"},
                   "On stderr: a bar in a terminal and lines elsewhere, or one JSON object a line");
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

// `ls` of "checkpoint ls", where one group alone has it.
std::string CommandLine::verb_within_a_group(const std::string& word) const {
  std::string only;
  for (const Verb& verb : verbs_) {
    if (!verb.name.ends_with(" " + word)) continue;
    if (!only.empty()) return "";
    only = verb.name;
  }
  return only;
}

Status CommandLine::refusal_of_extras(const CLI::App& app) const {
  const std::vector<std::string> before_verbs = root_->remaining(false);
  const bool is_before_verbs = !before_verbs.empty() && !before_verbs.front().starts_with("-");
  const CLI::App& at = is_before_verbs ? app : deepest(app);
  std::vector<std::string> extras = root_->remaining(true);
  const std::string word = extras.empty() ? "" : extras.front();
  const bool is_flag = word.starts_with("-");
  const std::vector<std::string> here = is_flag ? flags_of(at) : verbs_of(at);
  const std::string usual = known_elsewhere(word);
  const bool is_here = std::find(here.begin(), here.end(), usual) != here.end() ||
                       (usual.starts_with("--") && std::ranges::count(flags_of(at), usual) > 0);
  std::string likely = nearest(word, here);
  if (const std::string within = verb_within_a_group(word); is_before_verbs && !within.empty()) likely = within;
  if (is_here) likely = usual;
  if (const auto flag = flag_that_takes(at, word); flag && !is_flag && likely.empty() && here.empty())
    return Status(Code::kUsage, text("unexpected argument: ", word, ": ", path_of(at)),
                  text(*flag, " ", extras.front(), " (", path_of(at), " --help lists all)"));
  const bool is_verb = !is_flag && !here.empty();
  const char* what = is_flag ? "unknown flag: " : is_verb ? "unknown verb: " : "unexpected argument: ";
  return Status(Code::kUsage, text(what, word, ": ", path_of(at)),
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
    return Parsed{nullptr, {}, false, in_columns(asked.help(parent == nullptr ? "" : path_of(*parent)))};
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
    if (entry.app == &chosen) return Parsed{entry.verb, entry.action, json_, {}, progress_ == "json"};
  }
  return Status(Code::kUsage, text("missing verb: ", path_of(chosen), ": one of its verbs expected"),
                path_of(chosen) + " --help lists the verbs");
}

}  // namespace penstock::tools
