#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/command_line.h"
#include "tools/penstock/manual.h"

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

}  // namespace

Verb manual_verb() {
  struct Flags {
    std::string into;
    bool force = false;
  };
  auto flags = std::make_shared<Flags>();
  return {"manual",
          "Print the manual page, or write one page for each verb",
          "Without --into, it prints the command's page in roff; `penstock manual | man -l -` shows it.",
          {{"penstock manual --into ~/.local/share/man/man1", "Install the pages for yourself"}},
          [flags](Options& options) -> Action {
            options.text("--into", flags->into, "PATH", "Existing folder to write one page for each verb into");
            options.flag("--force", flags->force, "Overwrite pages that exist");
            return [flags](Session&) -> Result<Answer> {
              const CommandLine line(all_verbs());
              const auto verbs = syntax_of(line.root());
              Answer answer;
              if (flags->into.empty()) answer.text = manual_page(verbs.front(), verbs);
              for (const SyntaxVerb& verb : verbs) {
                answer.json["pages"].push_back(manual_name(verb));
                if (flags->into.empty()) continue;
                PENSTOCK_TRY(write_page(flags->into + "/" + manual_name(verb), manual_page(verb, verbs), flags->force));
              }
              return answer;
            };
          }};
}

}  // namespace penstock::tools
