// Which hyper-parameters each parameter of a model gets, by the rules of its run's config.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/model.h"

namespace penstock::trainer {

// Whether `name` contains `pattern`, where '*' stands for anything.
bool name_fits(std::string_view pattern, std::string_view name);

struct ParameterGroup {
  double lr = 0;  // the schedule's base
  double weight_decay = 0;

  bool operator==(const ParameterGroup&) const = default;
};

struct ParameterGroups {
  std::vector<ParameterGroup> groups;
  std::vector<std::vector<uint32_t>> of;  // by unit and parameter: its group
};

// Marks in `model` what a rule freezes beside what is frozen already, and groups the rest: matrices decay, norms and
// biases do not, unless a rule says otherwise. A frozen parameter in a unit with others that are trained has a group
// without rate and decay. Refuses a rule that fits no parameter, and rules that freeze everything.
Result<ParameterGroups> group_parameters(const TrainConfig& config, Model& model);

// What step `step` begins with, by group.
std::vector<Hyper> hypers_of(const TrainConfig& config, const ParameterGroups& groups, uint64_t step);

}  // namespace penstock::trainer
