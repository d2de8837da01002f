#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/command_line.h"
#include "tools/penstock/manual.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

Status write_page(const std::string& path, const std::string& page, bool force) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (force ? O_TRUNC : O_EXCL), 0644);
  if (file < 0) {
    return errno_status("create manual page: " + path, errno,
                        errno == EEXIST ? "another --into, or --force to overwrite"
                                        : "--into a folder that exists and may be written to");
  }
  const ssize_t written = write(file, page.data(), page.size());
  const int error = errno;
  close(file);
  if (written != static_cast<ssize_t>(page.size())) return errno_status("write manual page: " + path, error);
  return {};
}

// A verb as it is typed, or as its page is called: "nvme probe", "penstock-nvme-probe".
Result<SyntaxVerb> page_named(const std::vector<SyntaxVerb>& verbs, const std::string& name) {
  std::vector<std::string> names;
  for (const SyntaxVerb& verb : verbs) {
    const std::string page = manual_name(verb);
    if (name == verb.name || name == page || name + ".1" == page) return verb;
    if (!verb.name.empty()) names.push_back(verb.name);
  }
  const std::string likely = nearest(name, names);
  return Status(Code::kUsage, text("manual: ", name, ": a verb expected"),
                likely.empty() ? "penstock --help lists the verbs" : "penstock manual " + likely);
}

std::vector<OutputWord> output_of(const std::vector<Verb>& verbs, const std::string& name) {
  const auto found = std::ranges::find(verbs, name, &Verb::name);
  return found == verbs.end() ? std::vector<OutputWord>() : found->output;
}

}  // namespace

Verb manual_verb() {
  struct Flags {
    std::vector<std::string> verb;
    std::string into;
    bool force = false;
  };
  auto flags = std::make_shared<Flags>();
  return {"manual",
          "Print the manual page, or write one for each verb",
          "Without --into, it prints a verb's page in roff, or the command's; man shows it.",
          {{"penstock manual plan | man -l -", "Read about a verb"},
           {"penstock manual --into ~/.local/share/man/man1", "Install the pages for yourself"}},
          [flags](Options& options) -> Action {
            options.words("VERB", flags->verb,
                          "Verb to print the page of, such as nvme probe; default: all of them in short");
            options.text("--into", flags->into, "PATH", "Existing folder to write one page for each verb into");
            options.flag("--force", flags->force, "Overwrite pages that exist");
            return [flags](Session&) -> Result<Answer> {
              const std::vector<Verb> all = all_verbs();
              const CommandLine line(all);
              const auto verbs = syntax_of(line.root());
              Answer answer;
              const auto page_of = [&](const SyntaxVerb& verb) {
                return manual_page(verb, verbs, output_of(all, verb.name));
              };
              if (flags->into.empty()) {
                PENSTOCK_TRY_ASSIGN(verb, page_named(verbs, joined(flags->verb, " ")));
                answer.text = page_of(verb);
              }
              for (const SyntaxVerb& verb : verbs) {
                answer.json["pages"].push_back(manual_name(verb));
                if (flags->into.empty()) continue;
                const std::string page = page_of(verb);
                PENSTOCK_TRY(write_page(flags->into + "/" + manual_name(verb), page, flags->force));
              }
              return answer;
            };
          }};
}

}  // namespace penstock::tools
