// What every plan of a training step must have, whatever the model, the budgets and the choices: nothing is used before
// it is there, nothing leaves before its last use, and every byte that is taken is in the budget.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/random_plans.h"

namespace penstock {
namespace {

using test::RandomPlans;

// Which moves have surely ended when another begins.
class Before {
 public:
  explicit Before(const Plan& plan) : plan_(plan), ended_(plan.moves.size()) {
    for (MoveId id = 0; id < plan.moves.size(); ++id) {
      ended_[id].resize(id);
      for (MoveId other : plan.moves[id].after) {
        ended_[id][other] = true;
        for (MoveId before = 0; before < other; ++before)
          ended_[id][before] = ended_[id][before] || ended_[other][before];
      }
    }
  }
  bool operator()(MoveId first, MoveId then) const { return first < then && ended_[then][first]; }

  // Of one kind, unit and micro-batch, before `then`, in the order of the plan.
  std::vector<MoveId> all(MoveKind kind, uint32_t unit, uint32_t micro_batch, MoveId then) const {
    std::vector<MoveId> found;
    for (MoveId id = 0; id < then; ++id) {
      const Move& move = plan_.moves[id];
      const bool same = move.kind == kind && move.unit == unit && move.micro_batch == micro_batch;
      if (same && (*this)(id, then)) found.push_back(id);
    }
    return found;
  }

 private:
  const Plan& plan_;
  std::vector<std::vector<bool>> ended_;
};

MoveId release_of(const Plan& plan, MoveId taker) {
  for (MoveId id = taker; id < plan.moves.size(); ++id) {
    if (plan.moves[id].gives_back == taker) return id;
  }
  return kNoMove;
}

class TrainingPlan {
 public:
  TrainingPlan(const PlanRequest& request, const Plan& plan) : work_(request.workload), plan_(plan), before_(plan) {
    has_device_ = request.machine.devices > 0;
  }

  void check() {
    for (MoveId id = 0; id < plan_.moves.size(); ++id) {
      const Move& move = plan_.moves[id];
      if (move.kind == MoveKind::forward || move.kind == MoveKind::backward) check_use(id);
      if (move.kind == MoveKind::backward) check_activation(id);
      if (move.kind == MoveKind::gradient) check_gradient(id);
      if (move.kind == MoveKind::update) check_weight_of_update(id);
    }
    check_first_uses();
  }

 private:
  // The unit's weights are there and stay, and so is what the unit before has made of the micro-batch.
  void check_use(MoveId use) {
    const Move& move = plan_.moves[use];
    const uint32_t last = static_cast<uint32_t>(work_.units.size()) - 1;
    if (move.kind == MoveKind::forward) {
      if (move.unit > 0) {
        EXPECT_FALSE(before_.all(MoveKind::forward, move.unit - 1, move.micro_batch, use).empty());
      }
    } else {
      EXPECT_FALSE(before_.all(MoveKind::forward, move.unit, move.micro_batch, use).empty());
      if (move.unit < last) {
        EXPECT_FALSE(before_.all(MoveKind::backward, move.unit + 1, move.micro_batch, use).empty());
      }
    }
    const std::vector<MoveId> fetched = before_.all(MoveKind::fetch_weight, move.unit, kNone, use);
    const std::vector<MoveId> lifted = before_.all(MoveKind::lift_weight, move.unit, kNone, use);
    const std::vector<MoveId> gathered = before_.all(MoveKind::gather, move.unit, kNone, use);
    if (!fetched.empty()) {
      const MoveId reads = has_device_ ? lifted.back() : use;
      EXPECT_TRUE(before_(fetched.back(), reads) && before_(reads, release_of(plan_, fetched.back())));
    } else {
      EXPECT_FALSE(rests_on_nvme(move.unit)) << "unit " << move.unit << " is used and was not read";
    }
    if (has_device_) {
      ASSERT_FALSE(lifted.empty());
      EXPECT_TRUE(before_(use, release_of(plan_, lifted.back())));
      EXPECT_EQ(plan_.moves[lifted.back()].taken, plan_.moves[lifted.back()].bytes * work_.ranks);
    }
    if (work_.ranks > 1) {
      ASSERT_FALSE(gathered.empty());
      EXPECT_TRUE(!has_device_ || before_(lifted.back(), gathered.back()));
    }
    // Once for forward and once more for backward.
    EXPECT_GE(lifted.size(), !has_device_ ? 0 : move.kind == MoveKind::forward ? 1 : 2);
  }

  void check_activation(MoveId use) {
    const Move& move = plan_.moves[use];
    const MoveId made = before_.all(MoveKind::forward, move.unit, move.micro_batch, use).back();
    if (plan_.moves[made].takes == Pool::none) return;
    if (!offloads(plan_.activations)) {
      EXPECT_TRUE(before_(use, release_of(plan_, made)));
      return;
    }
    const auto away = before_.all(MoveKind::offload_activation, move.unit, move.micro_batch, use);
    const auto back = before_.all(MoveKind::return_activation, move.unit, move.micro_batch, use);
    ASSERT_TRUE(away.size() == 1 && back.size() == 1);
    EXPECT_TRUE(before_(made, away[0]) && before_(away[0], release_of(plan_, made)));
    EXPECT_TRUE(before_(away[0], back[0]) && before_(back[0], release_of(plan_, away[0])));
    EXPECT_TRUE(before_(use, release_of(plan_, back[0])));
  }

  // Every micro-batch's share of every use has been handed over.
  void check_gradient(MoveId gradient) {
    const uint32_t unit = plan_.moves[gradient].unit;
    const size_t groups = (work_.micro_batches + plan_.micro_batch_group - 1) / plan_.micro_batch_group;
    const size_t shares = groups * work_.units[unit].uses;
    for (uint32_t u = 0; u < work_.units.size(); ++u) {
      if (u != unit && work_.units[u].also_uses != unit) continue;
      for (uint32_t mb = 0; mb < work_.micro_batches; ++mb) {
        EXPECT_EQ(before_.all(MoveKind::backward, u, mb, gradient).size(), 1u);
      }
    }
    const auto reduced = before_.all(MoveKind::reduce, unit, kNone, gradient);
    const auto lowered = before_.all(MoveKind::lower_gradient, unit, kNone, gradient);
    EXPECT_EQ(reduced.size(), work_.ranks > 1 ? shares : 0);
    EXPECT_EQ(lowered.size(), has_device_ ? shares : 0);
    for (size_t i = 0; i < std::min(reduced.size(), lowered.size()); ++i) {
      EXPECT_TRUE(before_(reduced[i], lowered[i]));
    }
    const auto& handed_over = has_device_ ? lowered : reduced;
    for (MoveId id : handed_over) {
      bool after_backward = false;
      for (MoveId use = 0; use < id; ++use) {
        after_backward |= plan_.moves[use].kind == MoveKind::backward && before_(use, id);
      }
      EXPECT_TRUE(after_backward);
    }
  }

  // Where the update does not read the weight, backward's copy stays for it.
  void check_weight_of_update(MoveId update) {
    const Move& move = plan_.moves[update];
    const MoveId read = plan_.of_tile[move.tile].read;
    const uint64_t needed = plan_.tiles[move.tile].slot_bytes();
    if (plan_.placements[move.tile].weight == Tier::host || plan_.moves[read].bytes == needed) return;
    const auto fetched = before_.all(MoveKind::fetch_weight, move.unit, kNone, update);
    ASSERT_FALSE(fetched.empty());
    EXPECT_TRUE(before_(update, release_of(plan_, fetched.back())));
  }

  // A step's first use of a unit waits for the update of the step before.
  void check_first_uses() {
    for (uint32_t u = 0; u < work_.units.size(); ++u) {
      if (!work_.units[u].trainable) continue;
      std::vector<MoveId> waited_for;
      for (const Move& move : plan_.moves) {
        if (move.kind == MoveKind::backward) break;
        if (move.unit == u) waited_for.insert(waited_for.end(), move.after_previous.begin(), move.after_previous.end());
      }
      for (uint32_t tile = plan_.tiles.first_of(u); tile < plan_.tiles.first_of(u + 1); ++tile) {
        const Plan::TileMoves& moves = plan_.of_tile[tile];
        const MoveId update = plan_.placements[tile].weight == Tier::nvme ? moves.write : moves.update;
        const bool is_used = has_device_ || work_.ranks > 1 || plan_.placements[tile].weight == Tier::nvme;
        const bool waits = std::find(waited_for.begin(), waited_for.end(), update) != waited_for.end();
        EXPECT_TRUE(waits || !is_used) << "tile " << tile;
      }
    }
  }

  bool rests_on_nvme(uint32_t unit) const {
    for (uint32_t tile = plan_.tiles.first_of(unit); tile < plan_.tiles.first_of(unit + 1); ++tile) {
      if (plan_.placements[tile].weight == Tier::nvme) return true;
    }
    return false;
  }

  const Workload& work_;
  const Plan& plan_;
  const Before before_;
  bool has_device_ = false;
};

TEST_F(RandomPlans, UseNothingBeforeItIsThereNorAfterItHasLeft) {
  int trained = 0;
  for_each_plan(600, [&](const PlanRequest& request, const Plan& plan, std::mt19937_64&) {
    if (request.workload.pass != Pass::training) return;
    TrainingPlan(request, plan).check();
    ++trained;
  });
  EXPECT_GT(trained, 100);
}

uint64_t line_of(const Plan& plan, Tier tier, const std::string& name) {
  for (const BudgetLine& line : plan.budget_lines) {
    if (line.tier == tier && line.name == name) return line.bytes;
  }
  return 0;
}

TEST_F(RandomPlans, HaveEveryByteThatTheyTakeInTheirBudget) {
  for_each_plan(600, [](const PlanRequest& drawn, const Plan&, std::mt19937_64&) {
    PlanRequest request = drawn;
    request.process_bytes = 12345;
    request.budgets.host_bytes += request.process_bytes;
    const Result<Plan> made = make_plan(request);
    ASSERT_TRUE(made.ok());
    const Plan& plan = *made;
    auto pool = [&](Pool which) { return plan.pool_capacity[static_cast<size_t>(which)]; };
    uint64_t weights = 0, states = 0, slots = 0, spilled = 0, retained = 0;
    for (uint32_t tile = 0; tile < plan.tiles.size(); ++tile) {
      const Tile& shape = plan.tiles[tile];
      const Placement& placement = plan.placements[tile];
      if (placement.weight == Tier::host) weights += shape.weight_bytes;
      if (placement.state == Tier::host) states += shape.state_bytes;
      slots += shape.slot_bytes() * slots_per_tile(request);
      const bool waits = plan.clipping && plan.of_tile[tile].update != kNoMove;
      (placement.retained == Tier::host ? retained : spilled) += waits ? plan.tiles.gradient_bytes_max() : 0;
    }
    EXPECT_EQ(line_of(plan, Tier::host, "program"), request.process_bytes);
    EXPECT_EQ(line_of(plan, Tier::host, "tile window"), pool(Pool::window) * plan.tiles.slot_bytes_max());
    EXPECT_EQ(line_of(plan, Tier::host, "gradient backlog") + line_of(plan, Tier::host, "leaving gradients") +
                  line_of(plan, Tier::host, "retained gradients"),
              pool(Pool::gradient) * plan.tiles.gradient_bytes_max());
    EXPECT_EQ(line_of(plan, Tier::host, "retained gradients"), retained);
    EXPECT_EQ(line_of(plan, Tier::host, "resting weights"), weights);
    EXPECT_EQ(line_of(plan, Tier::host, "resting state"), states);
    EXPECT_EQ(line_of(plan, Tier::host, "accumulated gradients"), plan.accumulated_bytes);
    EXPECT_EQ(line_of(plan, Tier::host, "units under way"), pool(Pool::unit_host));
    EXPECT_EQ(line_of(plan, Tier::host, "offloaded activations"), pool(Pool::activation_host));
    EXPECT_EQ(line_of(plan, Tier::device, "units under way"), pool(Pool::unit_device));
    const Tier computes = request.machine.devices > 0 ? Tier::device : Tier::host;
    EXPECT_EQ(line_of(plan, computes, "activations"), pool(Pool::activation_device));
    EXPECT_EQ(line_of(plan, Tier::nvme, "slots"), slots);
    EXPECT_EQ(line_of(plan, Tier::nvme, "spilled gradients"), spilled);
  });
}

}  // namespace
}  // namespace penstock
