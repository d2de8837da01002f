#include "tools/penstock/manual.h"

#include <algorithm>
#include <sstream>

#include "tiering/check.h"
#include "tools/penstock/guides.h"
#include "tools/penstock/version.h"

namespace penstock::tools {
namespace {

// `plain` as roff prints it unchanged.
std::string roff(const std::string& plain) {
  std::string out;
  for (char letter : plain) {
    if (letter == '\\') {
      out += "\\e";
    } else if (letter == '-') {
      out += "\\-";
    } else if ((letter == '.' || letter == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + letter;
    } else {
      out += letter;
    }
  }
  return out;
}

std::string dashed(const SyntaxVerb& verb) {
  std::string name = verb.name.empty() ? "penstock" : "penstock-" + verb.name;
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string synopsis(const SyntaxVerb& verb) {
  std::string line = ".B " + roff("penstock" + (verb.name.empty() ? "" : " " + verb.name)) + "\n";
  const bool has_work = std::ranges::any_of(verb.options, &SyntaxOption::argument);  // besides its verbs
  if (!verb.subverbs.empty() && !has_work) return line + ".I VERB\n.RI [ OPTIONS ]\n";
  for (const SyntaxOption& option : verb.options) {
    if (!option.argument) continue;
    line += text(".I ", option.required ? "" : "[", option.name, option.repeats ? "..." : "",
                 option.required ? "" : "]", "\n");
  }
  return line + ".RI [ OPTIONS ]\n";
}

std::string options_section(const SyntaxVerb& verb) {
  std::string section;
  for (const SyntaxOption& option : verb.options) {
    section += text(".TP\n.BI \"", roff(option.name));
    if (option.takes_value && !option.argument) section += " \" " + roff(option.value_name) + " \"";
    section += text("\"\n", roff(option.help));
    if (!option.default_text.empty()) section += roff(" [default: " + option.default_text + "]");
    section += "\n";
  }
  return section.empty() ? "" : ".SH OPTIONS\n" + section;
}

// Paragraphs are parted by empty lines; an indented line keeps its form.
std::string paragraphs(const std::string& details) {
  std::string out;
  std::istringstream in(details);
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) {
      out += ".PP\n";
    } else if (line.starts_with("  ")) {
      out += ".RS\n.nf\n" + roff(line.substr(2)) + "\n.fi\n.RE\n";
    } else {
      out += roff(line) + "\n";
    }
  }
  return out;
}

std::string verbs_section(const std::vector<SyntaxVerb>& verbs) {
  std::string section = ".SH VERBS\n";
  for (const SyntaxVerb& verb : verbs) {
    const bool is_group = !verb.subverbs.empty() && std::ranges::none_of(verb.options, &SyntaxOption::argument);
    if (!is_group) section += text(".TP\n.BR ", roff(dashed(verb)), " (1)\n", roff(verb.summary), "\n");
  }
  return section;
}

std::string guides_section() {
  std::string section = ".SH SEE ALSO\n";
  for (const Guide& guide : guides()) section += text(".BR penstock\\-", roff(guide.name), " (1)\n");
  return section;
}

std::string output_section(const std::vector<OutputWord>& output) {
  std::string section;
  for (const OutputWord& word : output)
    section += text(".TP\n.B \"", roff(word.line), "\"\n", roff(word.meaning), "\n");
  return section.empty() ? "" : ".SH OUTPUT\n" + section;
}

constexpr const char* kExitStatus =
    ".SH EXIT STATUS\n"
    ".TP\n0\ndone\n"
    ".TP\n2\nusage or configuration: also a path that does not exist or is of the wrong kind\n"
    ".TP\n3\ndoes not fit: memory or space\n"
    ".TP\n4\nenvironment: permission, read\\-only, tmpfs, no direct I/O, no device, locked\n"
    ".TP\n5\ncorrupt store or data\n"
    ".TP\n6\na comparison failed\n"
    ".TP\n130\ninterrupted; unfinished files are removed\n";

}  // namespace

std::string manual_name(const SyntaxVerb& verb) { return dashed(verb) + ".1"; }

std::string manual_page(const SyntaxVerb& verb, const std::vector<SyntaxVerb>& verbs,
                        const std::vector<OutputWord>& output) {
  std::string title = dashed(verb);
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char c) { return std::toupper(c); });
  std::string page = text(".TH ", roff(title), " 1 \"\" \"penstock ", kVersion, "\" \"Penstock\"\n", ".SH NAME\n",
                          roff(dashed(verb)), " \\- ", roff(verb.summary), "\n", ".SH SYNOPSIS\n", synopsis(verb));
  if (!verb.details.empty()) page += ".SH DESCRIPTION\n" + paragraphs(verb.details);
  if (verb.name.empty()) page += verbs_section(verbs);
  page += options_section(verb) + output_section(output) + kExitStatus;
  return verb.name.empty() ? page + guides_section() : page;
}

}  // namespace penstock::tools
