#include "tools/penstock/command_line.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tools/penstock/command.h"
#include "tools/penstock/completion.h"
#include "tools/penstock/guides.h"
#include "tools/penstock/manual.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::vector<std::string> paths;
  uint64_t block_bytes = 1 << 20;
  double share = 1;
  uint64_t depth = 16;
  std::string engine = "auto";
};

// Two verbs of one group that do nothing.
std::vector<Verb> two_verbs(const std::shared_ptr<Flags>& flags) {
  auto nothing = [](Session&) -> Result<Answer> { return Answer{}; };
  auto define = [flags, nothing](Options& options) -> Action {
    options.paths("PATH", flags->paths, 1, "Where");
    options.bytes("--block", flags->block_bytes, "How large");
    options.share("--read-share", flags->share, "How much is read");
    options.choice("--engine", flags->engine, {"auto", "io_uring"}, "Which engine");
    options.count("--depth", flags->depth, "How many at once");
    return nothing;
  };
  auto look = [flags, nothing](Options& options) -> Action {
    options.choice("--engine", flags->engine, {"auto", "io_uring"}, "Which engine");
    return nothing;
  };
  return {{"nvme bench", "Measure", "It's -details.\n\n.dot", {{"penstock nvme bench .", "Here"}}, define},
          {"nvme probe", "Look", "", {}, look}};
}

TEST(CommandLine, FillsInWhatAVerbDeclares) {
  auto flags = std::make_shared<Flags>();
  CommandLine line(two_verbs(flags));
  const auto parsed = line.parse({"nvme", "bench", "a", "--block", "4KiB", "b", "--read-share=0.5", "--json"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->verb->name, "nvme bench");
  EXPECT_TRUE(parsed->json);
  EXPECT_EQ(flags->paths, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(flags->block_bytes, 4096u);
  EXPECT_EQ(flags->share, 0.5);
}

TEST(CommandLine, ListsHaveTheUnitsOfTheirNumbers) {
  std::vector<uint64_t> blocks, depths;
  std::vector<double> shares;
  auto define = [&](Options& options) -> Action {
    options.bytes_list("--block", blocks, "How large");
    options.count_list("--depth", depths, "How many at once");
    options.share_list("--read-share", shares, "How much is read");
    return [](Session&) -> Result<Answer> { return Answer{}; };
  };
  CommandLine line({{"nvme bench", "Measure", "", {}, define}});
  const auto parsed =
      line.parse({"nvme", "bench", "--block", "4KiB,1MiB,512", "--depth", "16,2k", "--read-share", "0,0.5"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(blocks, (std::vector<uint64_t>{4096, 1 << 20, 512}));
  EXPECT_EQ(depths, (std::vector<uint64_t>{16, 2000}));
  EXPECT_EQ(shares, (std::vector<double>{0, 0.5}));
}

TEST(CommandLine, HelpShowsTheWholeLineOfAVerb) {
  CommandLine line(two_verbs(std::make_shared<Flags>()));
  auto usage_of = [&](const std::vector<std::string>& arguments) {
    const auto parsed = line.parse(arguments);
    const std::string& said = parsed->help;
    const size_t begin = said.find("Usage: ");
    return said.substr(begin, said.find('\n', begin) - begin);
  };
  EXPECT_EQ(usage_of({"nvme", "bench", "--help"}), "Usage: penstock nvme bench [OPTIONS] PATH...");
  EXPECT_EQ(usage_of({"nvme", "--help"}).find("Usage: penstock nvme "), 0u);
  EXPECT_EQ(usage_of({"--help"}).find("Usage: penstock "), 0u);
}

struct Refused {
  std::vector<std::string> arguments;
  std::string message, remedy;  // parts of them
};

TEST(CommandLine, RefusesWithAWayOut) {
  for (const Refused& refused : std::vector<Refused>{
           {{}, "missing verb", "--help"},
           {{"nvme"}, "missing verb: penstock nvme", "penstock nvme --help"},
           {{"nvme", "prob"}, "unknown verb: prob", "probe"},
           {{"mvme"}, "unknown verb: mvme", "nvme"},
           {{"nvme", "bench"}, "PATH is required", "penstock nvme bench --help"},
           {{"nvme", "bench", ".", "--blok", "1MiB"}, "unknown flag: --blok", "--block"},
           {{"nvme", "bench", ".", "--bs", "4k"}, "unknown flag: --bs", "--block (penstock nvme bench"},
           {{"version"}, "unknown verb: version", "--version (penstock"},
           {{"help"}, "unknown verb: help", "--help (penstock"},
           {{"nvme", "probe", "io_uring"}, "unexpected argument: io_uring", "--engine io_uring (penstock nvme probe"},
           {{"nvme", "probe", "warp"}, "unexpected argument: warp", "penstock nvme probe --help"},
           {{"nvme", "bench", ".", "--depth", "x"}, "--depth: count: 'x': a number expected", "--depth 16"},
           {{"nvme", "bench", ".", "--xyzzy"}, "unknown flag: --xyzzy", "penstock nvme bench --help"},
           {{"nvme", "bench", ".", "--block", "huge"}, "--block: size: 'huge'", "1MiB"},
           {{"nvme", "bench", ".", "--block", "-4KiB"}, "--block", ""},
           {{"nvme", "bench", ".", "--read-share", "1.5"}, "share: '1.5'", "0.5"},
           {{"nvme", "bench", ".", "--engine", "uring"}, "choice: 'uring'", "auto, io_uring"},
       }) {
    CommandLine line(two_verbs(std::make_shared<Flags>()));
    const auto parsed = line.parse(refused.arguments);
    ASSERT_FALSE(parsed.ok()) << refused.message;
    EXPECT_EQ(parsed.status().code(), Code::kUsage);
    EXPECT_NE(parsed.status().message().find(refused.message), std::string::npos) << parsed.status().message();
    EXPECT_NE(parsed.status().remedy().find(refused.remedy), std::string::npos) << parsed.status().remedy();
  }
}

TEST(CommandLine, FindsTheNearestWord) {
  EXPECT_EQ(nearest("--dept", {"--depth", "--block"}), "--depth");
  EXPECT_EQ(nearest("benhc", {"probe", "bench"}), "bench");
  EXPECT_EQ(nearest("--sotre", {"--score", "--store"}), "--store") << "two letters swapped are one slip";
  EXPECT_EQ(nearest("quite-different", {"probe", "bench"}), "");
  EXPECT_EQ(nearest("h200", {"rtx4090-2gen4", "8h200-8gen5"}), "8h200-8gen5");
  EXPECT_EQ(nearest("gen", {"rtx4090-2gen4"}), "");
}

TEST(CommandLine, TellsSyntaxAsItParsesIt) {
  CommandLine line(two_verbs(std::make_shared<Flags>()));
  const auto verbs = syntax_of(line.root());
  ASSERT_EQ(verbs.size(), 4u);  // the command, the group, two verbs
  EXPECT_EQ(verbs[1].subverbs, (std::vector<std::string>{"bench", "probe"}));
  const SyntaxVerb& bench = verbs[2];
  EXPECT_EQ(bench.name, "nvme bench");
  std::map<std::string, SyntaxOption> options;
  for (const SyntaxOption& option : bench.options) options[option.name] = option;
  const SyntaxOption& path = options["PATH"];
  EXPECT_TRUE(path.argument && path.required && path.repeats && path.takes_path);
  EXPECT_EQ(options["--engine"].choices, (std::vector<std::string>{"auto", "io_uring"}));
  EXPECT_EQ(options["--engine"].default_text, "auto");
  EXPECT_EQ(options["--block"].default_text, "1MiB");
  EXPECT_TRUE(options["--block"].takes_value);
  EXPECT_TRUE(options.contains("--json") && !options["--json"].takes_value);
}

TEST(Manual, HasEveryFlagAndNoStrayRequests) {
  CommandLine line(two_verbs(std::make_shared<Flags>()));
  const auto verbs = syntax_of(line.root());
  const std::string page = manual_page(verbs[2], verbs);
  EXPECT_EQ(manual_name(verbs[2]), "penstock-nvme-bench.1");
  for (const char* part : {".TH PENSTOCK\\-NVME\\-BENCH 1", "\\-\\-block", "How large", "[default: 1MiB]",
                           "\\-\\-read\\-share", "auto|io_uring", "\n\\&.dot", "EXIT STATUS",
                           // The value stands beside its flag, not behind the explanation.
                           ".BI \"\\-\\-block \" SIZE \"\"\n"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part << " is not in\n" << page;
  }
}

TEST(CommandLine, SaysWhereAVerbIs) {
  for (const auto& [word, place] : {std::pair("man", "manual"),
                                    {"ls", "checkpoint ls"},
                                    {"export", "checkpoint export"},
                                    {"probe", "nvme probe"},
                                    {"show", "data show"}}) {
    for (const std::vector<std::string>& line : {std::vector<std::string>{word}, {word, "plan"}}) {
      const auto parsed = CommandLine(all_verbs()).parse(line);
      EXPECT_EQ(parsed.status().message(), text("unknown verb: ", word, ": penstock"));
      EXPECT_EQ(parsed.status().remedy(), text(place, " (penstock --help lists all)"));
    }
  }
}

TEST(Manual, HasTheGuidesThatTheCommandsPageNames) {
  const CommandLine line(all_verbs());
  const auto verbs = syntax_of(line.root());
  const std::string page = manual_page(verbs.front(), verbs);
  for (const char* verb : {"data", "data\\-show", "train", "checkpoint\\-ls"})
    EXPECT_NE(page.find(text(".BR penstock\\-", verb, " (1)")), std::string::npos) << verb;
  EXPECT_EQ(page.find(".BR penstock\\-checkpoint (1)"), std::string::npos) << "a group is no verb";
  ASSERT_GE(guides().size(), 2u);
  for (const Guide& guide : guides()) {
    EXPECT_NE(page.find(text(".BR penstock\\-", guide.name, " (1)")), std::string::npos) << page;
    EXPECT_NE(std::string(guide.page).find("\n.TH PENSTOCK-"), std::string::npos) << guide.name;
  }
}

TEST(Completion, KnowsTheSameWordsInEveryShell) {
  CommandLine line(two_verbs(std::make_shared<Flags>()));
  const auto verbs = syntax_of(line.root());
  for (const std::string& script : {bash_completion(verbs), zsh_completion(verbs), fish_completion(verbs)}) {
    for (const char* word : {"nvme bench", "probe", "read-share", "io_uring"}) {
      EXPECT_NE(script.find(word), std::string::npos) << word << " is not in\n" << script;
    }
  }
}

TEST(Completion, ExplainsEveryFlagInFish) {
  CommandLine line(two_verbs(std::make_shared<Flags>()));
  const std::string script = fish_completion(syntax_of(line.root()));
  EXPECT_NE(script.find(" -l block -r -d 'How large'\n"), std::string::npos) << script;
}

TEST(Completion, OffersNoPlaceholders) {
  const CommandLine line(all_verbs());
  const auto verbs = syntax_of(line.root());
  for (const std::string& script : {bash_completion(verbs), zsh_completion(verbs), fish_completion(verbs)}) {
    for (const char* placeholder : {"NAME", "FILE", "PATH", "SIZE"}) {
      EXPECT_EQ(script.find(text("'", placeholder)), std::string::npos) << placeholder;
    }
  }
  for (const SyntaxVerb& verb : verbs) {
    for (const SyntaxOption& option : verb.options) {
      const bool may_be_path = option.name == "--model" || option.name == "--machine" || option.name == "--store" ||
                               option.name == "--run" || option.name == "--into";
      EXPECT_TRUE(option.takes_path || !may_be_path) << verb.name << ' ' << option.name;
      EXPECT_FALSE(option.takes_path && option.name == "PROMPT") << verb.name;
    }
  }
}

TEST(Command, HelpKeepsWithin80Columns) {
  for (const Verb& verb : all_verbs()) {
    CommandLine line(all_verbs());
    std::vector<std::string> words = split(verb.name + " --help", ' ');
    for (const std::string& shown : split(line.parse(words)->help, '\n')) {
      const bool is_command = shown.starts_with("  penstock ") || shown.starts_with("  build/bin/");
      const bool is_one_word = shown.find(' ', shown.find_first_not_of(' ')) == std::string::npos;
      EXPECT_TRUE(shown.size() <= 80 || is_command || is_one_word) << verb.name << ": " << shown;
    }
  }
}

TEST(Command, EveryVerbExplainsItself) {
  for (const Verb& verb : all_verbs()) {
    EXPECT_FALSE(verb.summary.empty()) << verb.name;
    EXPECT_LT(verb.summary.size(), 80u) << verb.name;
    EXPECT_FALSE(verb.examples.empty()) << verb.name;
  }
}

}  // namespace
}  // namespace penstock::tools
