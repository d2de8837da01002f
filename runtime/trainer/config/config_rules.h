// What becomes of each key that a config may have: the table that config files are read by, in two parts.
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

// Keys of our own: data, evaluation, adapters, and the section "penstock".
std::span<const KeyRule> penstock_keys();
// Those of DeepSpeed's files: batches, optimizer, schedule, precision, ZeRO.
std::span<const KeyRule> deepspeed_keys();
// All of them, ours first.
std::span<const KeyRule> config_rules();

}  // namespace penstock::trainer
