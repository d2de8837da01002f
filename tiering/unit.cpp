#include "tiering/unit.h"

#include <algorithm>

namespace penstock {
namespace {

// Elements that only one group can have: those of one place for a parameter, or of one block of moments.
uint64_t group_granule(const StateForm& form) {
  return form.moments == MomentForm::int8 ? kMomentBlockElements : kParameterAlignmentElements;
}

Status validate_places(const Unit& unit) {
  uint64_t end = 0;
  for (const Parameter& parameter : unit.parameters) {
    auto refuse = [&](const std::string& why, const std::string& hint) {
      return Status(Code::kUsage, text("unit ", unit.name, ": parameter ", parameter.name, ": ", why), hint);
    };
    const uint64_t first = parameter.first_element;
    if (parameter.elements == 0) return refuse("has no elements", "leave it out");
    if (first % kParameterAlignmentElements != 0) {
      return refuse(text("begins at element ", first),
                    text("parameters begin at multiples of ", kParameterAlignmentElements, " elements"));
    }
    if (first > unit.elements || parameter.elements > unit.elements - first) {
      return refuse(text(parameter.elements, " elements from ", first, " on, where the unit has ", unit.elements),
                    "parameters lie in their unit");
    }
    if (first < end) {
      return refuse(text("begins at element ", first, ", before the end of the one before, ", end),
                    "parameters are given in the order of their elements and share none");
    }
    end = first + parameter.elements;
  }
  return Status();
}

// Runs end where a parameter begins or at multiples of the granule, so only the former can cut a granule.
Status validate_groups(const Unit& unit, const StateForm& form) {
  const uint64_t granule = group_granule(form);
  for (const GroupRun& run : group_runs(unit, form)) {
    if (run.end_element % granule == 0 || run.end_element == unit.elements) continue;
    for (const Parameter& parameter : unit.parameters) {
      if (parameter.first_element != run.end_element) continue;
      return Status(Code::kUsage,
                    text("unit ", unit.name, ": parameter ", parameter.name, ": begins in group ",
                         parameter.group.value_or(unit.group), " at element ", run.end_element, ", inside a block of ",
                         granule, " int8 moments with one scale, which begins in group ", run.group),
                    text("let parameters whose group is another than that of those before begin at multiples of ",
                         granule, " elements"));
    }
  }
  return Status();
}

Status validate_code(const Unit& unit) {
  if (!unit.code) return Status();
  if (unit.trainable) {
    return Status(Code::kUsage, text("unit ", unit.name, ": rests in ", name_of(*unit.code), " and is trainable"),
                  "freeze it, or leave it in the form's weight dtype");
  }
  if (*unit.code == BlockCode::int4) {
    return Status(Code::kUsage, text("unit ", unit.name, ": rests in int4"), "frozen weights rest in int8 or nf4");
  }
  return Status();
}

Status validate_uses(const Workload& workload) {
  for (const Use& use : workload.uses) {
    auto refuse = [&](const std::string& why) { return Status(Code::kUsage, text("use ", use.name, ": ", why)); };
    if (use.units.empty()) return refuse("names no unit");
    for (size_t i = 0; i < use.units.size(); ++i) {
      const uint32_t unit = use.units[i];
      if (unit >= workload.units.size()) {
        return refuse(text("names unit ", unit, ", the model has ", workload.units.size()));
      }
      if (std::count(use.units.begin(), use.units.end(), unit) > 1) {
        return refuse(text("names unit ", workload.units[unit].name, " twice"));
      }
    }
  }
  if (workload.scope == StepScope::training && workload.uses.empty()) {
    return Status(Code::kUsage, "model: a training pass without uses", "say which units forward passes through");
  }
  for (uint32_t unit = 0; unit < workload.units.size(); ++unit) {
    if (workload.units[unit].trainable && count_uses_of(workload, unit) == 0) {
      return Status(Code::kUsage, text("unit ", workload.units[unit].name, ": trainable, and no use names it"),
                    "freeze it, or name it in a use");
    }
  }
  return Status();
}

}  // namespace

std::vector<Use> uses_in_turn(const std::vector<Unit>& units) {
  std::vector<Use> uses;
  for (uint32_t unit = 0; unit < units.size(); ++unit) uses.push_back({.name = units[unit].name, .units = {unit}});
  return uses;
}

namespace {

bool is_used_in(const Use& use, uint32_t unit) { return std::ranges::find(use.units, unit) != use.units.end(); }

}  // namespace

std::vector<uint32_t> uses_of(const Workload& workload, uint32_t unit) {
  if (workload.uses.empty()) return {unit};
  std::vector<uint32_t> found;
  for (uint32_t use = 0; use < workload.uses.size(); ++use) {
    if (is_used_in(workload.uses[use], unit)) found.push_back(use);
  }
  return found;
}

uint32_t count_uses_of(const Workload& workload, uint32_t unit) {
  if (workload.uses.empty()) return 1;
  return static_cast<uint32_t>(
      std::ranges::count_if(workload.uses, [unit](const Use& use) { return is_used_in(use, unit); }));
}

uint32_t first_trained_use(const Workload& workload) {
  if (workload.last_backward_use) return *workload.last_backward_use;
  const auto trains = [&](const Use& use) {
    return std::ranges::any_of(use.units, [&](uint32_t unit) { return workload.units[unit].trainable; });
  };
  return static_cast<uint32_t>(std::ranges::find_if(workload.uses, trains) - workload.uses.begin());
}

Status validate(const Workload& workload) {
  PENSTOCK_TRY(validate(workload.form));
  PENSTOCK_TRY(validate_uses(workload));
  for (const Unit& unit : workload.units) {
    if (unit.elements == 0) return Status(Code::kUsage, text("unit ", unit.name, " has no elements"), "leave it out");
    PENSTOCK_TRY(validate_places(unit));
    PENSTOCK_TRY(validate_code(unit));
    if (unit.trainable) PENSTOCK_TRY(validate_groups(unit, workload.form));
  }
  return Status();
}

std::vector<ParameterRun> parameter_runs(const Unit& unit, const StateForm& form) {
  std::vector<ParameterRun> runs;
  uint64_t at = 0;
  auto run_to = [&](uint64_t end, std::optional<uint32_t> parameter, uint32_t group) {
    if (end <= at) return;
    runs.push_back({parameter, group, end});
    at = end;
  };
  for (uint32_t i = 0; i < unit.parameters.size(); ++i) {
    const Parameter& parameter = unit.parameters[i];
    run_to(parameter.first_element, {}, unit.group);
    const uint64_t next = i + 1 < unit.parameters.size() ? unit.parameters[i + 1].first_element : unit.elements;
    const uint64_t padded = round_up(parameter.first_element + parameter.elements, group_granule(form));
    run_to(std::min(padded, next), i, parameter.group.value_or(unit.group));
  }
  run_to(unit.elements, {}, unit.group);
  return runs;
}

std::vector<GroupRun> group_runs(const Unit& unit, const StateForm& form) {
  std::vector<GroupRun> runs;
  for (const ParameterRun& run : parameter_runs(unit, form)) {
    if (!runs.empty() && runs.back().group == run.group) runs.pop_back();
    runs.push_back({run.group, run.end_element});
  }
  return runs;
}

}  // namespace penstock
