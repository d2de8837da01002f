// How the tables of keys say what a value does, where it is read by its kind and goes into one field of TrainConfig.
// For penstock_keys.cpp and deepspeed_keys.cpp alone.
#pragma once

#include "runtime/trainer/config/config_rules.h"
#include "runtime/trainer/config/config_values.h"

#define PENSTOCK_NUMBER(field, least, most) \
  [](const nlohmann::ordered_json& value, TrainConfig& config) { return read_number(value, least, most, config.field); }
#define PENSTOCK_WHOLE(field, least) \
  [](const nlohmann::ordered_json& value, TrainConfig& config) { return read_whole(value, least, config.field); }
#define PENSTOCK_FLAG(field) \
  [](const nlohmann::ordered_json& value, TrainConfig& config) { return read_flag(value, config.field); }
#define PENSTOCK_WORDS(field) \
  [](const nlohmann::ordered_json& value, TrainConfig& config) { return read_words(value, config.field); }
#define PENSTOCK_OPTIONAL_NUMBER(field)                             \
  [](const nlohmann::ordered_json& value, TrainConfig& config) {    \
    return read_number(value, 0, kNoLimit, config.field.emplace()); \
  }
