# What PyTorch does about absent gradients, broken rule by rule: the suite of counts must catch each.

if(PENSTOCK_SANITIZE)
  return()  # the unbroken suite runs there
endif()

penstock_mutant(update_counts absent_is_counted LeaveTheBits runtime/engine/engine.cpp
  "counts.parameters[i] += !skipped_[unit].parameters[i];"
  "counts.parameters[i] += 1;")

penstock_mutant(update_counts absent_is_updated LeaveTheBits runtime/engine/engine.cpp
  "runs.push_back({numbers, origin.first_element + run.end_element, kind.untouched});"
  "runs.push_back({numbers, run.end_element});")

penstock_mutant(update_counts all_have_the_engines_count LeaveTheBits runtime/engine/engine.cpp
  "begin.groups[run.group], count + 1);"
  "begin.groups[run.group], state_.updates + 1);")

penstock_mutant(update_counts absences_are_not_told LeaveTheBits runtime/engine/engine_absences.cpp
  "core_->executor().set_numbers(unit, std::move(numbers));"
  "")

penstock_mutant(update_counts counts_are_not_kept LeaveTheBits runtime/engine/root_state.cpp
  "if (all_alike) break;"
  "break;")
