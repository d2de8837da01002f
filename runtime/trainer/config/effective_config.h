// The config that a run follows, whole: what a file said, what flags changed, and what was left to defaults.
#pragma once

#include <string>
#include <vector>

#include "runtime/trainer/config/train_config.h"

namespace penstock::trainer {

// JSON that parse_config() reads as the same config. Keys that have no effect with it are left out: parameters of other
// optimizers and schedules, loss scaling without fp16.
std::string effective_json(const TrainConfig& config);

// What of the config the bits of a run depend on and cannot change between two of its steps: the order of samples, how
// they are cut into micro-batches, and how losses are added up. A short text; a store made under another is refused.
std::string config_identity(const TrainConfig& config);

// Keys whose values differ, with both values: "optimizer.params.lr: 0.001, now 0.0005". Both are effective_json()'s.
std::vector<std::string> changed_keys(const std::string& before, const std::string& now);

}  // namespace penstock::trainer
