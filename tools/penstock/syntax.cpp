#include "tools/penstock/syntax.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "tools/system/words.h"

namespace penstock::tools {
namespace {

SyntaxOption option_of(const CLI::Option& option) {
  SyntaxOption plain;
  plain.argument = option.get_positional();
  plain.name = plain.argument ? option.get_name(true) : "--" + option.get_lnames().front();
  plain.takes_value = option.get_items_expected_max() > 0;
  plain.value_name = plain.takes_value ? option.get_type_name() : "";
  plain.default_text = option.get_default_str();
  plain.help = option.get_description();
  // "NAME|FILE" are placeholders for what the user writes, "keep|recompute" the words themselves.
  const bool placeholders = std::ranges::none_of(plain.value_name, [](unsigned char c) { return std::islower(c); });
  const bool several = plain.value_name.find('|') != std::string::npos;
  if (several && !placeholders) plain.choices = split(plain.value_name, '|');
  plain.required = option.get_required();
  const std::string& value = plain.value_name;
  plain.takes_path = value.starts_with("PATH") || value == "FILE" || value == "FOLDER" || value.ends_with("|FILE");
  plain.repeats = option.get_items_expected_max() > 1;
  return plain;
}

void add(const CLI::App& app, const std::string& name, std::vector<SyntaxVerb>& into) {
  SyntaxVerb verb{name, app.get_description(), app.get_footer(), {}, {}};
  for (const CLI::Option* option : app.get_options()) verb.options.push_back(option_of(*option));
  const auto subs = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : subs) verb.subverbs.push_back(sub->get_name());
  into.push_back(std::move(verb));
  for (const CLI::App* sub : subs) add(*sub, (name.empty() ? "" : name + " ") + sub->get_name(), into);
}

}  // namespace

std::vector<SyntaxVerb> syntax_of(const CLI::App& root) {
  std::vector<SyntaxVerb> all;
  add(root, "", all);
  return all;
}

}  // namespace penstock::tools
