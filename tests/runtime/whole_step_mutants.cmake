# The rules of a whole training step, broken one by one: the suite of whole steps must catch each.

if(PENSTOCK_SANITIZE)
  return()  # the unbroken suite runs there
endif()

penstock_mutant(whole_step forward_before_its_update WhereUpdatesAreLate tiering/plan/plan_pass.cpp
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

penstock_mutant(whole_step weight_that_nobody_left ComputeWith runtime/engine/executor_tiles.cpp
  "if (leases->left) job.weight_copy = leases->left.data();"
  "")

penstock_mutant(whole_step sums_of_uses_in_another_order SumTheUses runtime/engine/gradient_intake.cpp
  "kernels_.accumulate(Dtype::fp32, uses[use].sum + at, joined, count);"
  "kernels_.accumulate(Dtype::fp32, uses[uses.size() - use].sum + at, joined, count);")

penstock_mutant(whole_step use_summed_over_all_micro_batches_at_once LeaveTheBits runtime/engine/gradient_intake.cpp
  "if (part.micro_batch == 0) {
      convert("
  "if (part.micro_batch + 1 == micro_batches_) {
      convert(")

penstock_mutant(whole_step skip_leaves_a_changed_weight TakeBackTheWeights tiering/plan/step_speculation.cpp
  "return verdict_ == Verdict::skip && tiles_[tile].speculated && plan_.placements[tile].weight_in_host();"
  "return tiles_.empty() && tile == 0;")

penstock_mutant(whole_step told_of_an_update_before_its_verdict TellOfNoUpdate runtime/engine/engine.cpp
  "if (options.on_updated && options.request.workload.clipping.may_take_back()) {"
  "if (false) {")

penstock_mutant(whole_step postponed_update_forgotten LeaveTheBits tiering/plan/step_speculation.cpp
  "return fate.postponed || (fate.speculated"
  "return (fate.speculated")

penstock_mutant(whole_step codes_leave_before_they_are_dequantised LeaveTheBits tiering/plan/plan_pass.cpp
  "if (codes != kNoMove) give_back(area, codes, {held.ready});"
  "if (codes != kNoMove) give_back(area, codes, {});")

# On a device.

penstock_mutant(whole_step dequantised_behind_nothing OnADevice runtime/engine/executor_device.cpp
  "parts_.device->place_of(move), events_before(ticket));"
  "parts_.device->place_of(move), {});")

penstock_mutant(whole_step acquired_before_its_copy OnADevice runtime/engine/engine_pass.cpp
  "for (const Event& event : before) PENSTOCK_TRY("
  "for (const Event& event : std::vector<Event>()) PENSTOCK_TRY(")

penstock_mutant(whole_step released_before_its_last_reader OnADevice runtime/engine/executor_device.cpp
  "const bool orders_nothing = move.kind == MoveKind::release || "
  "const bool orders_nothing = ")

penstock_mutant(whole_step copied_behind_nothing OnADevice runtime/engine/executor_device.cpp
  "std::move(target), events_before(ticket));"
  "std::move(target), {});")

penstock_mutant(whole_step left_out_passes_order_nothing OnADevice runtime/engine/executor_device.cpp
  " || run_.is_skipped({step, id});"
  ";")

penstock_mutant(whole_step sum_overwritten_while_it_is_downloaded OnADevice tiering/plan/plan_pass.cpp
  "std::exchange(downloads_now_, {}))"
  "{})")

penstock_mutant(whole_step gradient_taken_before_it_is_made OnADevice runtime/engine/device_sums.cpp
  "order(source_, stream_);"
  "")

penstock_mutant(whole_step device_sum_never_begins_anew OnADevice runtime/engine/device_sums.cpp
  "return micro_batch == 0 || !is_vertical(plan_);"
  "return micro_batch == 0;")

penstock_mutant(whole_step activation_overwritten_before_it_is_offloaded OnADevice tiering/plan/plan_pass.cpp
  "give_back(moving_, kept.made, {kept.offloaded});"
  "give_back(moving_, kept.made, {});")

penstock_mutant(whole_step activation_overwritten_before_it_is_spilled LeaveTheBits tiering/plan/plan_pass.cpp
  "give_back(has_device_ ? passing_ : moving_, here, {kept.spilled});"
  "give_back(has_device_ ? passing_ : moving_, here, {});")

penstock_mutant(whole_step backward_before_its_activation LeaveTheBits tiering/plan/plan_pass.cpp
  ".after = {here}};
  std::vector<Compute::Sum> laid_out;"
  ".after = {}};
  std::vector<Compute::Sum> laid_out;")

penstock_mutant(whole_step squares_summed_before_they_are_rounded OnADevice runtime/engine/device_sums.cpp
  "launch(kernel::SquareSums{rounded, form, elements, squares}, stream_);"
  "launch(kernel::SquareSums{rounded, form, elements, squares}, memory_.device().kernel_stream());")

penstock_mutant(whole_step updated_there_and_never_written OnADevice runtime/engine/executor_device.cpp
  "unwritten_[move.tile].clear();"
  "")
