#include "runtime/trainer/config/yaml.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/trainer/config/effective_config.h"
#include "runtime/trainer/config/train_config.h"
#include "tests/support/damage.h"

namespace penstock::trainer {
namespace {

using json = nlohmann::ordered_json;

std::string read(const std::string& yaml) {
  const Result<json> value = parse_yaml(yaml);
  return value.ok() ? value->dump() : "refused: " + value.status().message();
}

TEST(Yaml, IsTheJsonThatItMeans) {
  EXPECT_EQ(read("# a run\n"
                 "model: llama.json   # a shape\n"
                 "max_steps: 100\n"
                 "optimizer:\n"
                 "  type: AdamW\n"
                 "  params: {lr: 3e-4, betas: [0.9, 0.95],\n"
                 "    weight_decay: .1}  # in two lines\n"
                 "\n"
                 "data:\n"
                 "- path: a.bin\n"
                 "  weight: 2.\n"
                 "-\n"
                 "  path: 'it''s.bin'\n"
                 "bf16:\n"
                 "  enabled: true\n"),
            R"({"model":"llama.json","max_steps":100,"optimizer":{"type":"AdamW","params":{"lr":0.0003,)"
            R"("betas":[0.9,0.95],"weight_decay":0.1}},"data":[{"path":"a.bin","weight":2.0},{"path":"it's.bin"}],)"
            R"("bf16":{"enabled":true}})");
}

TEST(Yaml, HasWordsNumbersAndNothing) {
  EXPECT_EQ(read("a: 24GiB\nb: \"x # \\u00e9\\n\"\nc: http://host:80/a#b\nd: -1\ne: +2e3\nf: ~\ng:\nh: 1-2\ni: a: b\n"),
            "refused: at line 9, column 4: a second colon: what has a colon and a space needs quotes");
  EXPECT_EQ(
      read("a: 24GiB\nb: \"x # \\u00e9\\n\"\nc: http://host:80/a#b\nd: -1\ne: +2e3\nf: ~\ng:\nh: 1-2\n'i j': [ ]\n"),
      "{\"a\":\"24GiB\",\"b\":\"x # \xc3\xa9\\n\",\"c\":\"http://host:80/a#b\",\"d\":-1,\"e\":2000.0,\"f\":null,"
      "\"g\":null,\"h\":\"1-2\",\"i j\":[]}");
  EXPECT_EQ(read("a: 18446744073709551615\nb: 1e400\n"),
            "refused: at line 2, column 4: '1e400' is beyond what a number can be");
  EXPECT_EQ(read(""), "null");
  EXPECT_EQ(read("---\r\na: b\r\n"), R"({"a":"b"})");
}

TEST(Yaml, HasListsInLists) {
  EXPECT_EQ(read("a:\n  - - 1\n    - 2\n  - [3, [4, 5],]\n  - {b: , c: [x y, \"z\"]}\n  - d:\n      e: 1\n    f: 2\n"),
            R"({"a":[[1,2],[3,[4,5]],{"b":null,"c":["x y","z"]},{"d":{"e":1},"f":2}]})");
}

TEST(Yaml, NamesWhatItDoesNotHave) {
  const std::pair<const char*, const char*> cases[] = {
      {"a: &x 1\n", "at line 1, column 4: an anchor (&)"},
      {"a: 1\nb: *x\n", "at line 2, column 4: an alias (*)"},
      {"a: !!int 1\n", "at line 1, column 4: a tag (!)"},
      {"a: |\n  text\n", "at line 1, column 4: a block of text"},
      {"a: 1\n---\nb: 2\n", "at line 2, column 1: a second document"},
      {"a: 1\n...\n", "at line 2, column 1: a second document"},
      {"%YAML 1.2\n---\na: 1\n", "at line 1, column 1: a directive"},
      {"a:\n  b: 1\n  <<: c\n", "at line 3, column 3: a merge"},
      {"? a\n: b\n", "at line 1, column 1: a key that is a value itself"},
      {"a: yes\n", "at line 1, column 4: 'yes' is a word to some"},
      {"a: 0777\n", "at line 1, column 4: '0777' is octal"},
      {"a: 0x1F\n", "at line 1, column 4: '0x1F' is a number to some"},
      {"a: .inf\n", "at line 1, column 4: '.inf' is no number"},
      {"a:\n\tb: 1\n", "at line 2, column 1: a tab in the indentation"},
      {"a: 1\n  b: 2\n", "at line 2, column 3: indented by 2 spaces, 0 or fewer"},
      {"a:\n    b: 1\n  c: 2\n", "at line 3, column 3: indented by 2 spaces, 0 or fewer"},
      {"a: 1\nb: 2\na: 3\n", "at line 3, column 1: 'a' is there already, in line 1"},
      {"a: {b: 1, b: 2}\n", "at line 1, column 11: 'b' is there already"},
      {"a: [1, 2\nb: 3\n", "at line 2, column 1: a comma or ']' expected, for the '[' of line 1, column 4"},
      {"a: [1, 2\n", "at line 1, column 4: '[' is not closed"},
      {"a: \"x\n", "at line 1, column 4: the quotes are not closed"},
      {"a: 'x' y\n", "at line 1, column 8: the value has ended"},
      {"a: \"\\q\"\n", "at line 1, column 4: in double quotes"},
      {"just words\nmore: 1\n", "at line 2, column 1: this belongs to nothing"},
      {"a: 1\nwords\n", "at line 2, column 1: a key and a colon expected"},
      {"a: x\x01\n", "at line 1, column 5: a control character"},
      {"a: - b\n", "at line 1, column 4: a list begins in a line of its own"},
      {"a: \xff\n", "its text is not UTF-8"},
  };
  for (const auto& [yaml, expected] : cases) {
    const Result<json> value = parse_yaml(yaml);
    ASSERT_FALSE(value.ok()) << yaml << value->dump();
    EXPECT_EQ(value.status().message().substr(0, std::string(expected).size()), expected) << yaml;
  }
}

TEST(Yaml, EndsWhereItIsTooDeep) {
  for (const char* part : {"[", "{a: ", "- "}) {
    std::string deep = std::string(part) == "- " ? "" : "a: ";
    for (int i = 0; i < 100'000; ++i) deep += part;
    EXPECT_NE(read(deep).find("more than 64 levels"), std::string::npos) << part;
  }
}

TEST(Yaml, IsReadBehindAByteOrderMark) {
  const std::string mark = "\xef\xbb\xbf";
  EXPECT_EQ(read(mark + "a: 1\nb: 2\n"), read("a: 1\nb: 2\n"));
  EXPECT_EQ(read(mark + "---\n# c\na: 1\n"), read("a: 1\n"));
  EXPECT_EQ(read(mark + "# c\na: 1\n"), read("a: 1\n"));
}

TEST(Yaml, RefusesWhatReadersDoNotAgreeOnWithinALine) {
  EXPECT_NE(read("a: {lr:3e-4}\n").find("a space expected behind the colon"), std::string::npos);
  EXPECT_NE(read("a: [- x]\n").find("no dashes"), std::string::npos);
  EXPECT_EQ(read("{\"a\":1}\n"), read("a: 1\n"));
}

TEST(Yaml, IsToldFromJson) {
  for (const char* yaml : {"a: 1", "# {\na: 1", "---\n{}", "\"a\": 1", "- 1"})
    EXPECT_TRUE(looks_like_yaml(yaml)) << yaml;
  for (const char* json_file : {"{}", " \n// a: 1\n{", "/* a\n: */ {\"a\": 1}", "[", "", "// only", "/* not closed"})
    EXPECT_FALSE(looks_like_yaml(json_file)) << json_file;
}

// JSON is YAML, as far as a config's JSON is.
TEST(Yaml, ReadsAConfigAsJsonDoes) {
  const std::string in_json =
      R"({"model": "m", "max_steps": 7, "train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": true},
      "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
      "penstock": {"stores": ["/a", "/b"], "host_budget": "2GiB"}})";
  const std::string in_yaml =
      "model: m\nmax_steps: 7\ntrain_micro_batch_size_per_gpu: 2\nfp16: {enabled: true}\noptimizer:\n  type: AdamW\n"
      "  params:\n    lr: 3e-4\n    betas: [0.9, 0.95]\npenstock:\n  stores:\n  - /a\n  - /b\n  host_budget: 2GiB\n";
  EXPECT_EQ(parse_yaml(in_json).value(), json::parse(in_json));
  const auto one = parse_config(in_json), other = parse_config(in_yaml);
  ASSERT_TRUE(one.ok()) << one.status().message();
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(effective_json(*one), effective_json(*other));
  const auto misspelt = parse_config("max_step: 7\n");
  EXPECT_EQ(misspelt.status().message(), "config: max_step: is not known");
  EXPECT_EQ(parse_config("max_steps: 7\n lr: 3\n").status().message().substr(0, 43),
            "config: not YAML: at line 2, column 2: inde");
}

// What is accepted is written as JSON, and read as the same; the rest is refused with its place.
TEST(Yaml, NoDamageIsReadAsSomethingElse) {
  const std::string whole =
      "# a run\nmodel: \"llama.json\"\nmax_steps: 100\noptimizer:\n  type: AdamW\n  params: {lr: 3e-4, betas: [0.9, "
      ".95],\n"
      "    weight_decay: 0}\ndata:\n- path: 'a.bin'\n  weight: 2.5\n-\n  path: b c\n- - 1\n  - [x, {y: z}]\nbf16: "
      "{enabled: true}\n";
  const char* signs[] = {"\n", " ",   "  ",  "- ",    ": ",   ":",  ",",   "[",  "]",    "{",     "}",     "\"",
                         "'",  "#",   " #",  "-",     "&a ",  "*a", "!t ", "|",  ">",    "---\n", "...\n", "? ",
                         "%",  "yes", "0x1", "1e999", "null", "~",  "\t",  "\\", "\r\n", ""};
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    std::mt19937_64 random(seed);
    std::string words = whole;
    for (uint64_t left = random() % 4 + 1; left > 0; --left) {
      const size_t at = random() % words.size();
      words.replace(at, random() % 3, signs[random() % std::size(signs)]);
    }
    if (seed % 4 == 0) {
      const auto* data = reinterpret_cast<const std::byte*>(words.data());
      const std::vector<std::byte> bytes = damaged({data, data + words.size()}, random);
      words.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    const Result<json> value = parse_yaml(words);
    if (!value.ok()) {
      EXPECT_TRUE(value.status().message().starts_with("at line ") ||
                  value.status().message() == "its text is not UTF-8")
          << "seed " << seed << ": " << value.status().message();
      continue;
    }
    ++accepted;
    const Result<json> again = parse_yaml(value->dump());
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << value->dump() << ": " << again.status().message();
    EXPECT_EQ(again->dump(), value->dump()) << "seed " << seed;
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_LT(accepted, 3500u);
}

}  // namespace
}  // namespace penstock::trainer
