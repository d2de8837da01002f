// `penstock data`: training data out of chats and texts. What it does is in runtime/python/penstock/data; its flags are
// declared here too, for --help, the manual and completion.
#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/python_start.h"

namespace penstock::tools {

Verb data_verb() {
  struct Flags {
    std::vector<std::string> files;
    std::string model, out, weights, template_file, turns = "all", layout = "packed", too_long = "truncate";
    std::optional<uint64_t> length, seed;
    double validation = 0.01;
    bool keep_duplicates = false, skip_bad = false, force = false;
  };
  auto flags = std::make_shared<Flags>();
  return {
      "data",
      "Make training data of chats, prompts with completions, or text",
      "Each line of a .jsonl is an object: a chat, {\"messages\": [{\"role\": \"user\", \"content\": ...}, ...]}, "
      "which is\n"
      "written with the model's own chat template and of which the assistant's turns are learnt; a prompt with a\n"
      "completion, {\"prompt\": ..., \"completion\": ...}, of which the completion is learnt; or {\"text\": ...}, of "
      "which\n"
      "all is. A .txt or .md is text. Samples are packed into rows of --length tokens, in which each sees itself\n"
      "alone. The set's folder is there when it is whole. What was interrupted is gone on with by the same command.\n"
      "It needs Python with transformers and tokenizers.",
      {{"penstock data chats.jsonl --model ./Qwen3-0.6B --out ./chats", "Chats for a model of Hugging Face's"},
       {"penstock data chats.jsonl code.jsonl --weights 3,1 --model ./Qwen3-0.6B --out ./mix",
        "Three rows of the one for each of the other"},
       {"penstock data show ./chats 5", "Look at what is learnt"}},
      [flags](Options& options) -> Action {
        options.paths("FILE", flags->files, 0, "JSON lines, or text");
        options.text("--model", flags->model, "PATH", "Folder of the model, with config.json and its tokenizer");
        options.text("--out", flags->out, "PATH", "Folder of the set, which is made");
        options.count("--length", flags->length,
                      "Tokens of a row, which a sample may have at most; default: 2048, or the model's context");
        options.choice("--turns", flags->turns, {"all", "last"}, "Which of the assistant's turns are learnt");
        options.choice("--layout", flags->layout, {"packed", "padded"}, "Several samples in a row, or one");
        options.choice("--long", flags->too_long, {"truncate", "drop"},
                       "What happens to chats and completions that are longer than a row; text is cut into rows");
        options.text("--weights", flags->weights, "W[,W]", "Share of each FILE among the rows that are trained on");
        options.share("--validation", flags->validation, "Share of the samples that is held out");
        options.count("--seed", flags->seed, "Of the choice of what is held out");
        options.file("--template", flags->template_file, "Chat template to use instead of the tokenizer's");
        options.flag("--keep-duplicates", flags->keep_duplicates, "Keep samples that are there already");
        options.flag("--skip-bad", flags->skip_bad, "Leave out bad lines, and count them");
        options.flag("--force", flags->force, "Replace a set that is there");
        return [](Session& session) -> Result<Answer> { return start_python(session, "data", "penstock.data"); };
      }};
}

Verb data_show_verb() {
  struct Flags {
    std::string folder, part = "train", color = "auto", model;
    std::optional<uint64_t> count;
    bool check = false;
  };
  auto flags = std::make_shared<Flags>();
  return {
      "data show",
      "Print samples of a prepared set, with what is learnt marked",
      "What is learnt is green in a terminal, and stands in [[ ]] elsewhere.",
      {{"penstock data show ./chats 5", "The first five samples"}},
      [flags](Options& options) -> Action {
        options.path("DIR", flags->folder, "Folder of the set");
        options.count("N", flags->count, "Samples; 3 if nothing is said");
        options.choice("--part", flags->part, {"train", "validation"}, "Which samples");
        options.choice("--color", flags->color, {"auto", "always", "never"}, "Marks by colour");
        options.text("--model", flags->model, "PATH", "Where the tokenizer is now, if it has moved");
        options.flag("--check", flags->check, "Read all of the set first, and refuse what is not as it was written");
        return [](Session& session) -> Result<Answer> { return start_python(session, "data show", "penstock.data"); };
      }};
}

}  // namespace penstock::tools
