// `penstock config`: what becomes of every key of a training file, before anything is trained.
#include <memory>

#include "runtime/trainer/config/effective_config.h"
#include "runtime/trainer/files/file_io.h"
#include "tools/nvme/scratch.h"
#include "tools/penstock/command.h"
#include "tools/penstock/config_checks.h"
#include "tools/penstock/text_table.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kConfigMostBytes = 1'000'000;

const char* words_of(trainer::KeyFate fate) {
  switch (fate) {
    case trainer::KeyFate::honoured:
      return "honoured";
    case trainer::KeyFate::no_effect:
      return "no effect";
    case trainer::KeyFate::refused:
      return "refused";
    case trainer::KeyFate::unknown:
      return "unknown";
  }
  return "";
}

// Keys that can be judged alone are; then the whole, as `penstock train` would.
Status verdict_on(const trainer::CheckedConfig& checked, const std::string& file) {
  PENSTOCK_TRY(checked.status());
  PENSTOCK_TRY_ASSIGN(config, trainer::parse_config(file));
  PENSTOCK_TRY(refuse_contradictions(config));
  PENSTOCK_TRY(places_of(config).status());
  PENSTOCK_TRY(refuse_repeated_folders("config: penstock.stores", config.stores));
  trainer::TrainConfig resolved = config;
  return trainer::resolve_batches(resolved, 1);
}

Result<Answer> check(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(file, trainer::read_small_file(path, kConfigMostBytes));
  Result<trainer::CheckedConfig> checked = trainer::check_config(file);
  if (!checked.ok()) return checked.status().within(path);

  Answer answer;
  answer.json["keys"] = Json::array();
  TextTable table({"key", "what becomes of it", "why"});
  for (const trainer::CheckedKey& key : checked->keys) {
    const bool unknown = key.fate == trainer::KeyFate::unknown;
    Json of_key = {{"key", key.key}, {"verdict", words_of(key.fate)}};
    of_key[unknown ? "nearest" : "note"] = key.note;
    answer.json["keys"].push_back(of_key);
    table.add({key.key, words_of(key.fate), unknown && !key.note.empty() ? "did you mean " + key.note : key.note});
  }
  answer.text = checked->keys.empty() ? "no keys: everything is left to defaults\n" : table.str();
  answer.verdict = verdict_on(*checked, file).within(path);
  if (answer.verdict.ok()) {
    const std::string effective = trainer::effective_json(trainer::parse_config(file).value());
    answer.json["config"] = Json::parse(effective);
    answer.text += "\nthe config as it would be followed\n" + effective + "\n";
  }
  return answer;
}

Result<Answer> keys() {
  Answer answer;
  answer.json["keys"] = Json::array();
  TextTable table({"key", "what becomes of it", "why"});
  for (const trainer::CheckedKey& key : trainer::known_keys()) {
    answer.json["keys"].push_back({{"key", key.key}, {"verdict", words_of(key.fate)}, {"note", key.note}});
    table.add({key.key, words_of(key.fate), key.note});
  }
  answer.text = table.str();
  return answer;
}

// One line a key: what a page of the manual can show.
std::string table_of_keys() {
  std::string lines;
  for (const trainer::CheckedKey& key : trainer::known_keys()) {
    lines += text("  ", key.key, ": ", words_of(key.fate), key.note.empty() ? "" : text(" (", key.note, ")"), "\n");
  }
  return lines;
}

}  // namespace

Verb config_check_verb() {
  auto path = std::make_shared<std::string>();
  return {"config check",
          "Say what becomes of every key of a training file",
          "Honoured, without effect here, refused (with what replaces it), or unknown (with the nearest known key).\n"
          "Then the config as it would be followed, defaults included. Exit code 2 if a key is refused or unknown.\n"
          "Of YAML, maps, lists, words, numbers, quotes and comments are read; anchors, tags, blocks of text, several\n"
          "documents and words as an unquoted yes are refused with their line.",
          {{"penstock config check ds_config.json", "A file that DeepSpeed reads"},
           {"penstock config check run.yaml", "The same keys in YAML"}},
          [path](Options& options) -> Action {
            options.path("FILE", *path, "JSON with comments, or YAML");
            return [path](Session&) { return check(*path); };
          }};
}

Verb config_keys_verb() {
  return {
      "config keys",
      "List every key that a training file may have",
      "DeepSpeed's are among them: what is honoured, what has no effect here, what is refused.\n\n" + table_of_keys(),
      {{"penstock config keys", "The table"}},
      [](Options&) -> Action { return [](Session&) { return keys(); }; }};
}

}  // namespace penstock::tools
