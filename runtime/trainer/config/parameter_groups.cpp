#include "runtime/trainer/config/parameter_groups.h"

#include <algorithm>

namespace penstock::trainer {
namespace {

const ParameterRule* rule_for(const std::vector<ParameterRule>& rules, const std::string& name) {
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [&](const ParameterRule& rule) { return name_fits(rule.pattern, name); });
  return found == rules.end() ? nullptr : &*found;
}

uint32_t number_of(const ParameterGroup& group, std::vector<ParameterGroup>& groups) {
  const auto found = std::find(groups.begin(), groups.end(), group);
  if (found != groups.end()) return static_cast<uint32_t>(found - groups.begin());
  groups.push_back(group);
  return static_cast<uint32_t>(groups.size() - 1);
}

// Schedules that set the rate themselves, whatever the optimizer's is.
bool sets_rate(const Schedule& schedule) {
  switch (schedule.kind) {
    case ScheduleKind::lr_range_test:
    case ScheduleKind::one_cycle:
      return true;
    case ScheduleKind::warmup:
    case ScheduleKind::warmup_decay:
      return schedule.warmup_max_lr.has_value();
    default:
      return false;
  }
}

}  // namespace

bool name_fits(std::string_view pattern, std::string_view name) {
  // Each part between stars is taken where it first comes: a later place could only leave less for the others.
  size_t at = 0;
  for (size_t begin = 0; begin <= pattern.size();) {
    const size_t end = std::min(pattern.find('*', begin), pattern.size());
    const std::string_view part = pattern.substr(begin, end - begin);
    const size_t found = name.find(part, at);
    if (found == std::string_view::npos) return false;
    at = found + part.size();
    begin = end + 1;
  }
  return true;
}

Result<ParameterGroups> group_parameters(const TrainConfig& config, Model& model) {
  ParameterGroups found;
  // The first group is the usual one: the rate that is shown is its.
  number_of({config.hyper.lr, config.hyper.weight_decay}, found.groups);
  std::vector<bool> fits(config.rules.size(), false);
  bool trains = false;
  for (ModelUnit& unit : model.units) {
    std::vector<uint32_t>& numbers = found.of.emplace_back();
    for (ModelParameter& parameter : unit.parameters) {
      for (size_t i = 0; i < fits.size(); ++i)
        if (name_fits(config.rules[i].pattern, parameter.name)) fits[i] = true;
      const ParameterRule* rule = rule_for(config.rules, parameter.name);
      const bool is_matrix = parameter.shape.size() > 1;
      ParameterGroup group{config.hyper.lr, is_matrix ? config.hyper.weight_decay : 0};
      if (rule != nullptr) {
        group.lr = rule->lr.value_or(group.lr);
        group.weight_decay = rule->weight_decay.value_or(group.weight_decay);
        parameter.trainable = parameter.trainable && !rule->frozen;
      }
      if (!parameter.trainable) group = {0, 0};
      trains = trains || parameter.trainable;
      numbers.push_back(number_of(group, found.groups));
    }
  }
  for (size_t i = 0; i < fits.size(); ++i) {
    if (!fits[i])
      return Status(Code::kUsage,
                    text("config: parameters: '", config.rules[i].pattern, "' is in no parameter's name, such as ",
                         model.units.back().parameters.front().name));
  }
  if (!trains) return Status(Code::kUsage, "config: parameters: every parameter is frozen, nothing would be trained");
  return found;
}

std::vector<Hyper> hypers_of(const TrainConfig& config, const ParameterGroups& groups, uint64_t step) {
  std::vector<Hyper> hypers;
  for (const ParameterGroup& group : groups.groups) {
    const double base = sets_rate(config.schedule) ? config.hyper.lr : group.lr;
    const Rate rate = rate_of(config.schedule, base, step);
    Hyper hyper = config.hyper;
    hyper.lr = rate.lr;
    if (sets_rate(config.schedule) && group.lr != config.hyper.lr)
      hyper.lr = group.lr == 0 || config.hyper.lr == 0 ? 0 : rate.lr * (group.lr / config.hyper.lr);
    hyper.weight_decay = group.weight_decay;
    if (rate.betas) {
      hyper.beta1 = hyper.momentum = rate.betas->first;
      hyper.beta2 = rate.betas->second;
    }
    hypers.push_back(hyper);
  }
  return hypers;
}

}  // namespace penstock::trainer
