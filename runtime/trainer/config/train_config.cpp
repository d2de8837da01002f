#include "runtime/trainer/config/train_config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/trainer/config/config_rules.h"
#include "runtime/trainer/config/yaml.h"
#include "tiering/letters_apart.h"

namespace penstock::trainer {
namespace {

using json = nlohmann::ordered_json;
using enum KeyFate;

// Where "auto" means that we choose; elsewhere it is a value like another.
bool is_auto(const std::string& key, const json& value) { return value == "auto" && key != "model"; }

// What a refused key may say without asking for anything.
bool asks_for_nothing(const json& value) {
  return value.is_null() || value == false || value == 0 || value == "none" || value == json::object();
}

const KeyRule* rule_of(const std::string& key) {
  const KeyRule* found = nullptr;
  size_t longest = 0;
  for (const KeyRule& rule : config_rules()) {
    const std::string_view path = rule.path;
    if (path == key) return &rule;
    if (path.ends_with(".*") && key.starts_with(path.substr(0, path.size() - 1)) && path.size() > longest)
      found = &rule, longest = path.size();
  }
  return found;
}

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

std::string nearest_to(const std::string& key) {
  constexpr size_t kKeyMostBytes = 200;  // comparing takes the product of both lengths
  if (key.size() > kKeyMostBytes) return "";
  const KeyRule* nearest = nullptr;
  size_t least = std::numeric_limits<size_t>::max();
  for (const KeyRule& rule : config_rules()) {
    if (std::string_view(rule.path).ends_with("*")) continue;
    // A key in the wrong section is as likely as a misspelt one.
    const size_t apart =
        std::min(letters_apart(key, rule.path), letters_apart(last_part(key), last_part(rule.path)) + 1);
    if (apart < least) least = apart, nearest = &rule;
  }
  const bool is_near = least <= std::max<size_t>(2, last_part(key).size() / 2);
  return nearest == nullptr || !is_near ? "" : nearest->path;
}

// The section goes down to its keys, unless it is itself what a rule is for.
bool is_section(const std::string& key, const json& value) {
  if (!value.is_object() || value.empty()) return false;
  const KeyRule* rule = rule_of(key);
  return rule == nullptr || rule->apply == nullptr;
}

void check_key(const std::string& key, const json& value, bool section_is_off, CheckedConfig& checked) {
  if (is_section(key, value)) {
    const auto enabled = value.find("enabled");
    const bool off = enabled != value.end() && *enabled == false;
    for (const auto& [name, below] : value.items()) check_key(key + "." + name, below, off, checked);
    return;
  }
  const KeyRule* rule = rule_of(key);
  CheckedKey found{.key = key};
  if (rule == nullptr) {
    const bool empty_section = value.is_object() && value.empty();
    if (empty_section && rule_of(key + ".x") != nullptr) return;
    found.fate = unknown;
    found.note = nearest_to(key);
  } else {
    found.fate = rule->fate;
    found.note = rule->note;
    if (rule->fate == refused && (section_is_off || asks_for_nothing(value))) {
      found.fate = no_effect;
      found.note = "is off";
    } else if (rule->fate == honoured && !is_auto(key, value) && !value.is_null()) {
      if (std::string wrong = rule->apply(value, checked.config); !wrong.empty()) {
        found.fate = refused;
        found.note = std::move(wrong);
      }
    }
  }
  checked.keys.push_back(std::move(found));
}

}  // namespace

Status CheckedConfig::status() const {
  const std::string every_key = "`penstock config keys` lists every key";
  for (const CheckedKey& key : keys) {
    if (key.fate == KeyFate::refused) return Status(Code::kUsage, text("config: ", key.key, ": ", key.note), every_key);
    if (key.fate == KeyFate::unknown)
      return Status(Code::kUsage, text("config: ", key.key, ": is not known"),
                    key.note.empty()
                        ? every_key
                        : text("the nearest known key is ", key.note, "; `penstock config keys` lists every key"));
  }
  return Status();
}

namespace {

Result<json> parse_file(const std::string& words) {
  if (words.find_first_not_of(" \t\r\n") == std::string::npos)
    return Status(Code::kUsage, "config: is empty", "{} is a config, too");
  if (looks_like_yaml(words)) {
    Result<json> file = parse_yaml(words);
    return file.ok() ? std::move(file)
                     : Status(Code::kUsage, "config: not YAML: " + file.status().message(),
                              "mend that line, or write JSON in braces");
  }
  constexpr int kDepthMost = 64;  // as in YAML; whoever looks into it goes down by recursion
  bool is_too_deep = false;
  std::vector<std::set<std::string>> names;  // of the objects that are open
  std::string twice;
  const auto within_depth = [&](int depth, json::parse_event_t event, const json& found) {
    is_too_deep |= depth > kDepthMost;
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(found.get<std::string>()).second && twice.empty())
      twice = found.get<std::string>();
    return !is_too_deep;
  };
  try {
    json file = json::parse(words, within_depth, /*allow_exceptions=*/true, /*ignore_comments=*/true);
    if (is_too_deep) return Status(Code::kUsage, text("config: more than ", kDepthMost, " levels"), "fewer braces");
    if (!twice.empty()) return Status(Code::kUsage, text("config: '", twice, "' is there twice"), "leave one of them");
    return file;
  } catch (const json::out_of_range& error) {
    const std::string_view why = error.what();  // begins with "[json.exception.out_of_range.406] "
    return Status(Code::kUsage, text("config: ", why.substr(why.find(']') + 2)), "a number up to 1.7e308");
  } catch (const json::exception& error) {
    std::string why = error.what();
    // The message begins with "[json.exception.parse_error.101] parse error at line 3, column 7: ".
    if (const size_t at = why.find("at line"); at != std::string::npos) why = why.substr(at);
    return Status(Code::kUsage, "config: not JSON: " + why,
                  "mend it there: keys and words stand in double quotes, and no comma after the last");
  }
}

bool is_on(const json& file, const char* section) {
  const auto found = file.find(section);
  if (found == file.end() || !found->is_object()) return false;
  const auto enabled = found->find("enabled");
  return enabled != found->end() && *enabled == true;
}

bool is_off(const json& file, const char* section) {
  const auto found = file.find(section);
  if (found == file.end() || !found->is_object()) return false;
  const auto enabled = found->find("enabled");
  return enabled != found->end() && *enabled == false;
}

// Sections that are not there are made; a value where a section should be stays, and is refused as such.
void put(json& file, const std::string& key, const json& value) {
  json* at = &file;
  for (size_t begin = 0;;) {
    const size_t end = key.find('.', begin);
    json& below = (*at)[key.substr(begin, end - begin)];
    if (end == std::string::npos) {
      below = value;
      return;
    }
    if (below.is_null()) below = json::object();
    if (!below.is_object()) return;
    at = &below;
    begin = end + 1;
  }
}

void check_precision(const json& file, CheckedConfig& checked) {
  if (file.contains("precision")) return;
  if (is_on(file, "fp16") && is_on(file, "bf16")) {
    std::erase_if(checked.keys, [](const CheckedKey& key) { return key.key == "fp16.enabled"; });
    checked.keys.push_back({"fp16.enabled", KeyFate::refused, "bf16.enabled is true, too: one of them expected"});
  }
  if (is_off(file, "bf16") && !is_on(file, "fp16")) checked.config.precision = Dtype::fp32;
}

void check_overflow(CheckedConfig& checked) {
  if (checked.config.precision == Dtype::fp16 && checked.config.skip_overflow == false) {
    checked.keys.push_back({"skip_overflow", KeyFate::refused, "fp16 finds its loss scale by steps that are skipped"});
  }
}

void check_lora(CheckedConfig& checked) {
  const LoraConfig& lora = checked.config.lora;
  if (lora.rank == 0 && lora.adapter.empty() && lora != LoraConfig()) {
    checked.keys.push_back(
        {"lora.rank", KeyFate::refused, "is missing: 16, for one, or 0 beside nothing else of lora"});
  }
}

// A batch is left out by taking back the step that has computed it, which not every run's updates allow.
void check_loss_rules(CheckedConfig& checked) {
  const TrainConfig& config = checked.config;
  auto refuse = [&](const std::string& why) { checked.keys.push_back({"loss_rules", KeyFate::refused, why}); };
  if (config.loss_rules.has(LossAction::rollback) && config.keep_every == 0 && config.keep_best == 0) {
    return refuse(
        "rollback: keep_every and keep_best are 0, so that there is no snapshot to go back to; "
        "\"keep_every\": 100, for one");
  }
  const LossAction skips = config.loss_rules.has(LossAction::skip) ? LossAction::skip : LossAction::lower_rate;
  const bool waits = config.gradient_clipping > 0 || config.skips_overflow();
  const bool can_be_taken_back = config.space == "double" && config.durability == "step";
  if (!config.loss_rules.has(skips) || waits || can_be_taken_back) return;
  refuse(text(name_of(skips),
              ": with gradient_clipping 0 and no skip_overflow weights are overwritten before the loss is known, where "
              "penstock.space is ",
              config.space, " and penstock.durability ", config.durability,
              "; \"skip_overflow\": true, a gradient_clipping above 0, or \"durability\": \"step\" with \"space\": "
              "\"double\" expected"));
}

}  // namespace

Result<CheckedConfig> check_config(const std::string& words, const std::vector<ConfigOverride>& overrides) {
  PENSTOCK_TRY_ASSIGN(file, parse_file(words));
  if (!file.is_object())
    return Status(Code::kUsage, "config: not a JSON object, nor a map in YAML",
                  "put braces around its keys; {} is a config, too");
  if (const auto older = file.find("bfloat16"); older != file.end() && !file.contains("bf16")) {
    json section = std::move(*older);  // DeepSpeed's older name
    file.erase("bfloat16");
    file["bf16"] = std::move(section);
  }
  for (const ConfigOverride& given : overrides) put(file, given.key, json::parse(given.value));
  CheckedConfig checked;
  for (const auto& [name, value] : file.items()) check_key(name, value, false, checked);
  check_precision(file, checked);
  check_overflow(checked);
  check_lora(checked);
  check_loss_rules(checked);
  return checked;
}

Result<TrainConfig> parse_config(const std::string& words, const std::vector<ConfigOverride>& overrides) {
  PENSTOCK_TRY_ASSIGN(checked, check_config(words, overrides));
  PENSTOCK_TRY(checked.status());
  PENSTOCK_TRY(validate(checked.config.optimizer, checked.config.hyper).within("config: optimizer.params"));
  // Where the number of steps follows from the data, the schedule's end is not known yet; all else of it is judged
  // here.
  constexpr uint64_t kStepsMost = uint64_t{1} << 53;
  TrainConfig resolved = checked.config;
  if (resolved.max_steps == 0) resolved.max_steps = kStepsMost;
  PENSTOCK_TRY(resolve_schedule(resolved));
  return checked.config.max_steps > 0 ? resolved : checked.config;
}

Status resolve_schedule(TrainConfig& config) {
  Schedule& schedule = config.schedule;
  if (schedule.total_steps == 0) schedule.total_steps = config.max_steps;
  if (schedule.total_num_steps == 0) schedule.total_num_steps = config.max_steps;
  return validate(schedule).within("config");
}

Status resolve_batches(TrainConfig& config, uint32_t ranks) {
  uint64_t &all = config.train_batch, &micro = config.micro_batch, &steps = config.accumulation;
  const uint64_t given_micro = micro, given_steps = steps;
  auto refused = [&](const std::string& why) {
    return Status(Code::kUsage, text("config: batches: ", why),
                  "train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks");
  };
  if (micro == 0 && steps == 0) micro = all == 0 || all % ranks != 0 ? 1 : all / ranks;
  if (micro == 0 && all != 0 && steps != 0) micro = all / (steps * ranks);
  if (micro == 0 && all == 0) micro = 1;
  if (steps == 0) steps = all == 0 ? 1 : micro == 0 ? 0 : all / (micro * ranks);
  if (all == 0) all = micro * steps * ranks;
  if (micro == 0 || steps == 0 || micro * steps * ranks != all)
    return refused(text("train_batch_size ", all, " is not micro-batch ", given_micro == 0 ? "?" : text(given_micro),
                        " x accumulation ", given_steps == 0 ? "?" : text(given_steps), " x ", ranks, " ranks"));
  return Status();
}

std::vector<CheckedKey> known_keys() {
  std::vector<CheckedKey> keys;
  for (const KeyRule& rule : config_rules()) keys.push_back({rule.path, rule.fate, rule.note});
  return keys;
}

}  // namespace penstock::trainer
