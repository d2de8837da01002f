#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/command_line.h"
#include "tools/penstock/completion.h"

namespace penstock::tools {

Verb completion_verb() {
  auto shell = std::make_shared<std::string>("bash");
  return {"completion",
          "Print the completion script for a shell",
          "",
          {{"source <(penstock completion --shell bash)", "Complete in this shell"}},
          [shell](Options& options) -> Action {
            options.choice("--shell", *shell, {"bash", "zsh", "fish"}, "The shell to complete in");
            return [shell](Session&) -> Result<Answer> {
              const CommandLine line(all_verbs());
              const auto verbs = syntax_of(line.root());
              Answer answer;
              answer.text = *shell == "zsh"    ? zsh_completion(verbs)
                            : *shell == "fish" ? fish_completion(verbs)
                                               : bash_completion(verbs);
              answer.json["script"] = answer.text;
              return answer;
            };
          }};
}

}  // namespace penstock::tools
