#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/command_line.h"
#include "tools/penstock/guides.h"
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

std::vector<OutputWord> output_of(const std::vector<Verb>& verbs, const std::string& name) {
  const auto found = std::ranges::find(verbs, name, &Verb::name);
  return found == verbs.end() ? std::vector<OutputWord>() : found->output;
}

struct Page {
  std::string subject;  // as it is typed: "nvme probe"; of the command, nothing
  std::string file;     // "penstock-nvme-probe.1"
  std::string roff;
};

std::vector<Page> all_pages() {
  const std::vector<Verb> all = all_verbs();
  const CommandLine line(all);
  const auto verbs = syntax_of(line.root());
  std::vector<Page> pages;
  for (const SyntaxVerb& verb : verbs)
    pages.push_back({verb.name, manual_name(verb), manual_page(verb, verbs, output_of(all, verb.name))});
  for (const Guide& guide : guides()) pages.push_back({guide.name, text("penstock-", guide.name, ".1"), guide.page});
  return pages;
}

// A verb or guide as it is typed, or as its page is called: "nvme probe", "penstock-nvme-probe".
Result<Page> page_named(const std::vector<Page>& pages, const std::string& name) {
  std::vector<std::string> subjects;
  for (const Page& page : pages) {
    if (name == page.subject || name == page.file || name + ".1" == page.file) return page;
    if (!page.subject.empty()) subjects.push_back(page.subject);
  }
  const std::string likely = nearest(name, subjects);
  return Status(Code::kUsage, text("manual: ", name, ": a verb or a guide expected"),
                likely.empty() ? "penstock --help lists the verbs" : "penstock manual " + likely);
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
          "Without --into, it prints a verb's page in roff, or the command's; man shows it. Guides have pages too:\n"
          "finetune goes from a file of chats to answers, ranks says how several processes train together.",
          {{"penstock manual plan | man -l -", "Read about a verb"},
           {"penstock manual ranks | man -l -", "Read a guide"},
           {"penstock manual --into ~/.local/share/man/man1", "Install the pages for yourself"}},
          [flags](Options& options) -> Action {
            options.words("VERB", flags->verb,
                          "Verb or guide to print the page of, such as nvme probe; default: all of them in short");
            options.text("--into", flags->into, "PATH", "Existing folder to write one page for each verb into");
            options.flag("--force", flags->force, "Overwrite pages that exist");
            return [flags](Session&) -> Result<Answer> {
              const std::vector<Page> pages = all_pages();
              Answer answer;
              if (flags->into.empty()) {
                PENSTOCK_TRY_ASSIGN(page, page_named(pages, joined(flags->verb, " ")));
                answer.text = page.roff;
                answer.json["page"] = page.roff;
              }
              for (const Page& page : pages) {
                answer.json["pages"].push_back(page.file);
                if (!flags->into.empty())
                  PENSTOCK_TRY(write_page(flags->into + "/" + page.file, page.roff, flags->force));
              }
              return answer;
            };
          }};
}

}  // namespace penstock::tools
