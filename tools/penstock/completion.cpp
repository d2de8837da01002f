#include "tools/penstock/completion.h"

#include "tiering/check.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

// What may follow the verb: its subverbs and its flags.
std::string words_after(const SyntaxVerb& verb) {
  std::vector<std::string> words = verb.subverbs;
  for (const SyntaxOption& option : verb.options) {
    if (!option.argument) words.push_back(option.name);
  }
  return joined(words, " ");
}

bool takes_paths(const SyntaxVerb& verb) {
  for (const SyntaxOption& option : verb.options) {
    if (option.argument && option.takes_path) return true;
  }
  return false;
}

// The body of a shell function that bash and zsh share: sets `fitting` to what fits, and `paths` to 1 where a path
// does. REQUIRES of the function around it: `before` is an array of the words between the command and the cursor.
std::string choose_words(const std::vector<SyntaxVerb>& verbs) {
  std::string script =
      "  local verb='' word previous='' fitting='' paths=0\n"
      "  for word in \"${before[@]}\"; do\n"
      "    previous=$word\n"
      "    case \"$verb${verb:+ }$word\" in\n";
  for (const SyntaxVerb& verb : verbs) {
    if (!verb.name.empty())
      script += text("      ", shell_quoted(verb.name), ") verb=", shell_quoted(verb.name), " ;;\n");
  }
  script += "    esac\n  done\n  case \"$verb $previous\" in\n";
  for (const SyntaxVerb& verb : verbs) {
    for (const SyntaxOption& option : verb.options) {
      if (option.argument || !option.takes_value) continue;
      script += text("    ", shell_quoted(verb.name + " " + option.name), ") ",
                     option.takes_path ? "paths=1" : "fitting=" + shell_quoted(joined(option.choices, " ")), " ;;\n");
    }
  }
  script += "    *)\n      case \"$verb\" in\n";
  for (const SyntaxVerb& verb : verbs) {
    script += text("        ", shell_quoted(verb.name), ") fitting=", shell_quoted(words_after(verb)),
                   takes_paths(verb) ? " paths=1" : "", " ;;\n");
  }
  return script + "      esac ;;\n  esac\n";
}

}  // namespace

std::string bash_completion(const std::vector<SyntaxVerb>& verbs) {
  return "# bash completion for penstock\n_penstock() {\n"
         "  local before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\") current=${COMP_WORDS[COMP_CWORD]}\n" +
         choose_words(verbs) +
         "  mapfile -t COMPREPLY < <(compgen -W \"$fitting\" -- \"$current\"; ((paths)) && compgen -f -- "
         "\"$current\")\n"
         "}\ncomplete -o filenames -F _penstock penstock\n";
}

std::string zsh_completion(const std::vector<SyntaxVerb>& verbs) {
  return "#compdef penstock\n_penstock() {\n"
         "  local -a before=(\"${words[@]:1:$((CURRENT - 2))}\")\n" +
         choose_words(verbs) +
         "  compadd -- ${=fitting}\n  ((paths)) && _files\n}\n"
         "if [ \"$funcstack[1]\" = _penstock ]; then _penstock \"$@\"; else compdef _penstock penstock; fi\n";
}

std::string fish_completion(const std::vector<SyntaxVerb>& verbs) {
  // A group of verbs is completed right after it; a verb goes on with its flags and paths whatever stands between.
  std::string script =
      "# fish completion for penstock\n"
      "function __penstock_said\n"
      "  string join ' ' -- (string match -v -- '-*' (commandline -opc)[2..-1])\n"
      "end\n"
      "function __penstock_at\n"
      "  set -l said (__penstock_said)\n"
      "  test \"$said\" = \"$argv[1]\"\n"
      "end\n"
      "function __penstock_in\n"
      "  __penstock_at $argv[1]; or string match -q -- \"$argv[1] *\" (__penstock_said)\n"
      "end\n"
      "complete -c penstock -f\n";
  for (const SyntaxVerb& verb : verbs) {
    const std::string where = (verb.subverbs.empty() ? "__penstock_in " : "__penstock_at ") + shell_quoted(verb.name);
    const std::string at = "complete -c penstock -n " + shell_quoted(where);
    if (!verb.subverbs.empty()) script += text(at, " -a ", shell_quoted(joined(verb.subverbs, " ")), "\n");
    if (takes_paths(verb)) script += at + " -F\n";
    for (const SyntaxOption& option : verb.options) {
      if (option.argument) continue;
      script += text(at, " -l ", option.name.substr(2), option.takes_value ? " -r" : "", option.takes_path ? " -F" : "",
                     option.choices.empty() ? "" : " -xa " + shell_quoted(joined(option.choices, " ")), " -d ",
                     shell_quoted(option.help), "\n");
    }
  }
  return script;
}

}  // namespace penstock::tools
