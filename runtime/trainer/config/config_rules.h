// What becomes of each key that a config may have: the one table that config files are read by.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "runtime/trainer/config/train_config.h"

namespace penstock::trainer {

// What an honoured key's value does: nothing is returned if all is well, else what is wrong with it.
using ApplyKey = std::string (*)(const nlohmann::ordered_json& value, TrainConfig& config);

// A path that ends with ".*" stands for all keys below it.
struct KeyRule {
  const char* path;
  KeyFate fate;
  const char* note;
  ApplyKey apply = nullptr;
};

std::span<const KeyRule> config_rules();

// One of samples.prompts, from JSON to JSON.
Result<std::string> parse_prompt(const std::string& written);

}  // namespace penstock::trainer
