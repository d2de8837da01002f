// Requests for plans of random models, machines, budgets and choices, the same for the same seed.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "tiering/plan/planner.h"

namespace penstock::test {

inline MachineProfile test_machine(bool with_device) {
  MachineProfile machine;
  DriveRates drive;
  drive.burst = MixCurve({{0.0, 4.0}, {0.5, 3.8}, {1.0, 3.5}});
  machine.drives = {drive};
  machine.host_gbps = 60;
  if (with_device) {
    machine.devices = 1;
    machine.host_to_device_gbps = machine.device_to_host_gbps = 25;
    machine.collective_gbps = 100;
  }
  return machine;
}

inline PlanRequest random_request(std::mt19937_64& random) {
  auto up_to = [&](uint64_t n) { return random() % (n + 1); };
  PlanRequest request;
  Workload& work = request.workload;
  for (uint64_t i = 0, units = 1 + up_to(5); i < units; ++i) {
    Unit unit;
    unit.name = text("unit", i);
    unit.elements = 1 + up_to(6 * kBlockElements);
    unit.trainable = up_to(5) != 0;
    if (!unit.trainable && unit.elements % 3 != 0) {
      unit.code = unit.elements % 3 == 1 ? BlockCode::nf4 : BlockCode::int8;
    }
    work.units.push_back(unit);
  }
  work.uses = uses_in_turn(work.units);
  // A unit that is used twice in a row, and a last use with the first's weights, as a tied head has.
  if (up_to(3) == 0) work.uses.insert(work.uses.begin(), work.uses.front());
  if (work.units.size() > 1 && up_to(3) == 0) work.uses.back().units.push_back(0);
  for (Use& use : work.uses) {
    use.forward_s = 1e-3;
    use.backward_s = 2e-3;
    use.activation_bytes = up_to(1) * 100'000;
    use.boundary_bytes = use.activation_bytes / 10;
  }
  work.clipping.norm = up_to(2) != 0 ? 1 : 0;
  work.scope = up_to(1) ? StepScope::training : StepScope::update_only;
  work.micro_batches = 1 + static_cast<uint32_t>(up_to(3));
  work.ranks = up_to(2) == 0 ? 2 : 1;
  static constexpr OptimizerKind kKinds[] = {OptimizerKind::adamw, OptimizerKind::lion, OptimizerKind::sgd,
                                             OptimizerKind::adagrad};
  work.form.optimizer = kKinds[up_to(3)];
  static constexpr MomentForm kMoments[] = {MomentForm::fp32, MomentForm::bf16, MomentForm::int8};
  work.form.moments = kMoments[up_to(2)];
  request.machine = test_machine(up_to(1));
  const auto kind = static_cast<Durability::Kind>(up_to(2));
  request.durability = Durability{kind, 1 + static_cast<uint32_t>(up_to(2))};
  request.budgets.host_bytes = kMiB + up_to(48 * kMiB);
  request.budgets.device_bytes = up_to(40 * kMiB);
  if (up_to(2) == 0) request.choices.host_state_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(2) == 0) request.choices.retained_host_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(2) == 0) request.choices.weights = up_to(1) ? WeightTier::host : WeightTier::nvme;
  if (up_to(2) == 0) request.choices.window_tiles = 1 + static_cast<uint32_t>(up_to(1) ? up_to(5) : up_to(60));
  if (request.choices.window_tiles) request.choices.ahead_window_tiles = *request.choices.window_tiles % 7;
  if (up_to(2) == 0) request.choices.tile_elements = kBlockElements * (1 + up_to(3));
  if (up_to(2) == 0) request.choices.micro_batch_group = 1 + static_cast<uint32_t>(up_to(3));
  request.choices.activations = static_cast<ActivationChoice>(up_to(3));
  if (up_to(2) == 0) request.choices.keep_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(2) == 0) request.choices.offload_host_share = static_cast<double>(up_to(4)) / 4;
  request.stores_activations = up_to(1);
  if (work.scope == StepScope::update_only) work.uses.clear();
  if (up_to(1)) request.choices.device_share = static_cast<double>(up_to(4)) / 4;
  if (up_to(1)) request.choices.deferred_share = static_cast<double>(up_to(4)) / 4;
  return request;
}

class RandomPlans : public testing::Test {
 protected:
  // Calls `check` with plans that fit until `count` did.
  template <typename Check>
  void for_each_plan(int count, Check check) {
    int refused = 0;
    for (uint64_t seed = 1; count > 0; ++seed) {
      std::mt19937_64 random(seed);
      PlanRequest request = random_request(random);
      Result<Plan> plan = make_plan(request);
      if (!plan.ok()) {
        EXPECT_EQ(plan.status().code(), Code::kDoesNotFit) << plan.status().message() << " seed " << seed;
        ASSERT_LT(++refused, 20000);
        continue;
      }
      SCOPED_TRACE(text("seed ", seed));
      check(request, *plan, random);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
      --count;
    }
  }
};

}  // namespace penstock::test
