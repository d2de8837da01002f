# The rules of a whole training step, broken one by one: the suite of whole steps must catch each.

if(PENSTOCK_SANITIZE)
  return()  # the unbroken suite runs there
endif()

penstock_mutant(whole_step forward_before_its_update LeaveTheBits tiering/plan/plan_pass.cpp
  "if (id != kNoMove) waits.push_back(id);"
  "")

penstock_mutant(whole_step computed_before_weights_arrive LeaveTheBits tiering/plan/plan_pass.cpp
  "move.after.push_back(weights[i].ready);"
  "")

penstock_mutant(whole_step weights_leave_under_their_reader LeaveTheBits tiering/plan/plan_pass.cpp
  "give_back(host_units_, held.host, {has_device_ ? held.device : last_compute_});"
  "give_back(host_units_, held.host, {});")

penstock_mutant(whole_step copy_leaves_before_its_update LeaveTheBits tiering/plan/plan_pass.cpp
  "if (held.host != kNoMove) until.push_back(plan_.of_tile[tile].update);"
  "")

penstock_mutant(whole_step sums_of_uses_in_another_order LeaveTheBits runtime/engine/gradient_intake.cpp
  "kernels_.accumulate(Dtype::fp32, as_bytes(uses[use].sum + first), sum, count);"
  "kernels_.accumulate(Dtype::fp32, as_bytes(uses[uses.size() - use].sum + first), sum, count);")

penstock_mutant(whole_step use_summed_over_all_micro_batches_at_once LeaveTheBits runtime/engine/gradient_intake.cpp
  "if (part.micro_batch == 0) {
      kernels_.cast("
  "if (part.micro_batch + 1 == micro_batches_) {
      kernels_.cast(")

penstock_mutant(whole_step skip_leaves_a_changed_weight TakeBackTheWeights tiering/plan/step_speculation.cpp
  "return verdict_ == Verdict::skip && tiles_[tile].speculated && plan_.placements[tile].weight == Tier::host;"
  "return tiles_.empty() && tile == 0;")

penstock_mutant(whole_step postponed_update_forgotten LeaveTheBits tiering/plan/step_speculation.cpp
  "return fate.postponed || (fate.speculated"
  "return (fate.speculated")
