// What every plan of a training step must have, whatever the model, the budgets and the choices: nothing is used before
// it is there, nothing leaves before its last use, and every byte that is taken is in the budget.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

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

  // Of one kind before `then`, in the order of the plan; `matches` says which.
  template <typename Matches>
  std::vector<MoveId> all(MoveKind kind, MoveId then, Matches matches) const {
    std::vector<MoveId> found;
    for (MoveId id = 0; id < then; ++id) {
      if (plan_.moves[id].kind == kind && matches(plan_.moves[id]) && (*this)(id, then)) found.push_back(id);
    }
    return found;
  }
  std::vector<MoveId> of_use(MoveKind kind, uint32_t use, uint32_t micro_batch, MoveId then) const {
    return all(kind, then, [&](const Move& move) { return move.use == use && move.micro_batch == micro_batch; });
  }
  std::vector<MoveId> of_unit(MoveKind kind, uint32_t unit, MoveId then) const {
    return all(kind, then, [&](const Move& move) { return move.unit == unit; });
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
    may_defer_ = request.choices.deferred_share.value_or(0) > 0;
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
    check_downloads();
    check_passes();
  }

  int offloaded = 0, spilled = 0;  // activations: to host memory, and to the drives
  int in_codes = 0;                // weights of a pass
  int on_device = 0;               // at rest

 private:
  // The units' weights are there and stay, and so is what the use before has made of the micro-batch.
  void check_use(MoveId id) {
    const Move& move = plan_.moves[id];
    const uint32_t last = static_cast<uint32_t>(work_.uses.size()) - 1;
    if (move.kind == MoveKind::forward) {
      if (move.use > 0) {
        EXPECT_FALSE(before_.of_use(MoveKind::forward, move.use - 1, move.micro_batch, id).empty());
      }
    } else {
      EXPECT_FALSE(before_.of_use(MoveKind::forward, move.use, move.micro_batch, id).empty());
      if (move.use < last) {
        EXPECT_FALSE(before_.of_use(MoveKind::backward, move.use + 1, move.micro_batch, id).empty());
      }
    }
    for (uint32_t unit : work_.uses[move.use].units) check_weights(id, unit);
  }

  void check_weights(MoveId id, uint32_t unit) {
    const Move& move = plan_.moves[id];
    auto is_for = [&](const Move& other) { return other.unit == unit && other.use == move.use; };
    const std::vector<MoveId> fetched = before_.all(MoveKind::fetch_weight, id, is_for);
    const std::vector<MoveId> uploaded = before_.all(MoveKind::upload_weight, id, is_for);
    const std::vector<MoveId> gathered = before_.all(MoveKind::gather, id, is_for);
    const std::vector<MoveId> dequantised = before_.all(MoveKind::dequantise_weight, id, is_for);
    const bool is_coded = work_.units[unit].code.has_value();
    in_codes += is_coded;
    if (plan_.rests_on_device(unit)) {
      ++on_device;
      EXPECT_TRUE(fetched.empty() && uploaded.empty() && dequantised.empty()) << "unit " << unit << " rests there";
      EXPECT_EQ(before_.of_unit(MoveKind::weights_current, unit, id).size(), 1u);
      return;
    }
    ASSERT_EQ(dequantised.empty(), !is_coded);
    if (!fetched.empty()) {
      const MoveId reads = has_device_ ? uploaded.back() : is_coded ? dequantised.back() : id;
      EXPECT_TRUE(before_(fetched.back(), reads) && before_(reads, release_of(plan_, fetched.back())));
    } else {
      EXPECT_FALSE(rests_on_nvme(unit)) << "unit " << unit << " is used and was not read";
    }
    if (has_device_) {
      ASSERT_FALSE(uploaded.empty());
      EXPECT_TRUE(before_(is_coded ? dequantised.back() : id, release_of(plan_, uploaded.back())));
      EXPECT_EQ(plan_.moves[uploaded.back()].place_bytes, plan_.moves[uploaded.back()].bytes * work_.ranks);
    }
    if (is_coded) {
      const Move& last = plan_.moves[dequantised.back()];
      EXPECT_TRUE(before_(id, release_of(plan_, dequantised.back())));
      EXPECT_EQ(last.source, has_device_ ? uploaded.back() : fetched.empty() ? kNoMove : fetched.back());
      EXPECT_GE(last.place_bytes, work_.units[unit].elements * bytes_of(work_.form.weight));
    }
    if (work_.ranks > 1) {
      ASSERT_FALSE(gathered.empty());
      EXPECT_TRUE(!has_device_ || before_(uploaded.back(), gathered.back()));
      EXPECT_TRUE(!is_coded || before_(gathered.back(), dequantised.back()));
    }
    // Once for forward and once more for backward; for the last use, which turns, once for both of each group.
    const bool turns = move.use + 1 == work_.uses.size();
    EXPECT_GE(uploaded.size(), !has_device_ ? 0 : move.kind == MoveKind::forward || turns ? 1 : 2);
    if (turns) {
      const size_t groups = move.micro_batch / plan_.micro_batch_group + 1;
      EXPECT_EQ(fetched.size(), rests_on_nvme(unit) ? groups : 0);
      EXPECT_EQ(uploaded.size(), has_device_ ? groups : 0);
    }
    EXPECT_EQ(before_.of_unit(MoveKind::weights_current, unit, id).size(), 1u);
  }

  void check_activation(MoveId id) {
    const Move& move = plan_.moves[id];
    const MoveId made = before_.of_use(MoveKind::forward, move.use, move.micro_batch, id).back();
    if (plan_.moves[made].area == Area::none) return;
    // Each copy is made of the one before, which stays until then; the last stays for backward.
    std::vector<MoveId> copies = {made};
    for (MoveKind kind : {MoveKind::download_activation, MoveKind::spill_activation, MoveKind::fetch_activation,
                          MoveKind::upload_activation}) {
      const auto found = before_.of_use(kind, move.use, move.micro_batch, id);
      copies.insert(copies.end(), found.begin(), found.end());
    }
    const bool leaves = offloads(plan_.activations[move.use]);
    const bool is_spilled = leaves && plan_.moves[copies[has_device_ ? 2 : 1]].kind == MoveKind::spill_activation;
    EXPECT_TRUE(!leaves || has_device_ || is_spilled);
    EXPECT_EQ(copies.size(), 1u + (leaves && has_device_ ? 2 : 0) + (is_spilled ? 2 : 0));
    for (size_t i = 1; i < copies.size(); ++i) {
      EXPECT_EQ(plan_.moves[copies[i]].source, copies[i - 1]);
      EXPECT_TRUE(before_(copies[i - 1], copies[i]));
      EXPECT_TRUE(before_(copies[i], release_of(plan_, copies[i - 1])));
    }
    EXPECT_TRUE(before_(id, release_of(plan_, copies.back())));
    (is_spilled ? spilled : offloaded) += leaves;
  }

  // Every micro-batch's share of every use has been handed over.
  void check_gradient(MoveId gradient) {
    const uint32_t unit = plan_.moves[gradient].unit;
    const bool vertical = plan_.micro_batch_group >= work_.micro_batches;
    const std::vector<uint32_t> uses = uses_of(work_, unit);
    const size_t shares = uses.size() * (vertical ? 1 : work_.micro_batches);
    for (uint32_t use : uses) {
      for (uint32_t mb = 0; mb < work_.micro_batches; ++mb) {
        EXPECT_EQ(before_.of_use(MoveKind::backward, use, mb, gradient).size(), 1u);
      }
    }
    const auto reduced = before_.of_unit(MoveKind::reduce, unit, gradient);
    const auto downloaded = before_.of_unit(MoveKind::download_gradient, unit, gradient);
    const bool stays = plan_.rests_on_device(unit);
    EXPECT_EQ(reduced.size(), work_.ranks == 1 ? 0 : has_device_ ? shares : 1);
    EXPECT_EQ(downloaded.size(), has_device_ && !stays ? shares : 0);
    EXPECT_EQ(before_.of_unit(MoveKind::download_squares, unit, gradient).size(), stays ? 1 : 0);
    for (size_t i = 0; i < std::min(reduced.size(), downloaded.size()); ++i) {
      EXPECT_TRUE(before_(reduced[i], downloaded[i]));
    }
    for (MoveId id : has_device_ ? downloaded : reduced) {
      const Move& move = plan_.moves[id];
      EXPECT_FALSE(before_.of_use(MoveKind::backward, move.use, move.micro_batch, id).empty());
    }
  }

  // Where the update does not read the weight, backward's copy stays for it. Not for one that is deferred.
  void check_weight_of_update(MoveId update) {
    const Move& move = plan_.moves[update];
    const Plan::TileMoves& moves = plan_.of_tile[move.tile];
    const bool rests = !plan_.placements[move.tile].weight_on_drives();
    EXPECT_FALSE(rests && moves.weight_copy != kNoMove);
    if (moves.weight_copy == kNoMove && !rests) {
      EXPECT_EQ(plan_.moves[moves.read].bytes, plan_.tiles[move.tile].slot_bytes());
      EXPECT_TRUE(may_defer_);
    }
    if (moves.weight_copy == kNoMove) return;
    EXPECT_EQ(plan_.moves[moves.read].bytes, plan_.tiles[move.tile].state_bytes);
    EXPECT_TRUE(before_(moves.weight_copy, update));
    EXPECT_TRUE(before_(update, release_of(plan_, moves.weight_copy)));
  }

  // A unit's weights are current when its update of the step before has landed where they rest, a redo has, and what a
  // skip has to bring back is back.
  void check_first_uses() {
    for (const Move& move : plan_.moves) {
      if (move.kind != MoveKind::weights_current || !work_.units[move.unit].trainable) continue;
      for (TileId tile = plan_.tiles.first_of(move.unit); tile < plan_.tiles.first_of(move.unit + 1); ++tile) {
        const Plan::TileMoves& moves = plan_.of_tile[tile];
        const bool on_nvme = plan_.placements[tile].weight_on_drives();
        for (MoveId id : {on_nvme ? moves.write : moves.update, on_nvme ? moves.write_again : moves.update_again,
                          on_nvme ? kNoMove : moves.reread}) {
          if (id == kNoMove) continue;
          const std::vector<MoveId>& waits = move.after_previous;
          EXPECT_TRUE(std::find(waits.begin(), waits.end(), id) != waits.end()) << "tile " << tile;
        }
      }
    }
  }

  // A tile that the device updates comes down when what came down last is written, even where its update is left out.
  void check_downloads() {
    for (const Move& move : plan_.moves) {
      if (move.kind != MoveKind::download_state) continue;
      const std::vector<MoveId>& waits = move.after_previous;
      const MoveId write = plan_.of_tile[move.tile].write;
      EXPECT_TRUE(std::find(waits.begin(), waits.end(), write) != waits.end()) << "tile " << move.tile;
    }
  }

  // Forward goes through all, and backward comes back as far as something is trained.
  void check_passes() {
    const uint32_t first_trained = first_trained_use(work_);
    for (uint32_t use = 0; use < work_.uses.size(); ++use) {
      uint32_t forward = 0, backward = 0;
      for (const Compute& compute : plan_.computes) {
        if (compute.use == use) ++(compute.direction == Direction::forward ? forward : backward);
      }
      EXPECT_EQ(forward, work_.micro_batches) << "use " << use;
      EXPECT_EQ(backward, use < first_trained ? 0 : work_.micro_batches) << "use " << use;
      const auto trains = [&](uint32_t unit) { return work_.units[unit].trainable; };
      EXPECT_TRUE(use >= first_trained || std::ranges::none_of(work_.uses[use].units, trains)) << "use " << use;
    }
  }

  bool rests_on_nvme(uint32_t unit) const {
    for (TileId tile = plan_.tiles.first_of(unit); tile < plan_.tiles.first_of(unit + 1); ++tile) {
      if (plan_.placements[tile].weight_on_drives()) return true;
    }
    return false;
  }

  const Workload& work_;
  const Plan& plan_;
  const Before before_;
  bool has_device_ = false, may_defer_ = false;
};

TEST_F(RandomPlans, UseNothingBeforeItIsThereNorAfterItHasLeft) {
  int trained = 0, offloaded = 0, spilled = 0, in_codes = 0, on_device = 0;
  for_each_plan(600, [&](const PlanRequest& request, const Plan& plan, std::mt19937_64&) {
    if (request.workload.scope != StepScope::training) return;
    TrainingPlan training(request, plan);
    training.check();
    ++trained;
    offloaded += training.offloaded;
    spilled += training.spilled;
    in_codes += training.in_codes;
    on_device += training.on_device;
  });
  EXPECT_GT(trained, 100);
  EXPECT_GT(offloaded, 100);
  EXPECT_GT(spilled, 100);
  EXPECT_GT(in_codes, 100);
  EXPECT_GT(on_device, 100);
}

uint64_t line_of(const Plan& plan, Tier tier, const std::string& name) {
  for (const BudgetLine& line : plan.budget_lines) {
    if (line.tier == tier && line.name == name) return line.bytes;
  }
  return 0;
}

// A model whose base rests in NF4: 16 codes and scales of 64 elements in 9 B for every 16 elements.
TEST(FrozenBase, MovesAndTakesTheBytesOfItsCodes) {
  constexpr uint64_t kElements = 40 * kBlockElements;
  PlanRequest request;
  request.machine = test::test_machine(/*with_device=*/true);
  for (uint32_t i = 0; i < 4; ++i) {
    request.workload.units.push_back(
        {.name = text("base", i), .elements = kElements, .trainable = false, .code = BlockCode::nf4, .parameters = {}});
    request.workload.units.push_back({.name = text("adapter", i), .elements = kBlockElements, .parameters = {}});
    request.workload.uses.push_back({.name = text("use", i), .units = {2 * i, 2 * i + 1}, .forward_s = 1e-3});
  }
  request.workload.scope = StepScope::training;
  request.budgets = {.device_bytes = kGiB, .host_bytes = kGiB};
  request.choices.tile_elements = 4 * kBlockElements;
  constexpr uint64_t kCoded = kElements / 16 * 9, kComputed = kElements * 2;
  for (const WeightTier rest : {WeightTier::host, WeightTier::nvme}) {
    request.choices.weights = rest;
    const Result<Plan> made = make_plan(request);
    ASSERT_TRUE(made.ok()) << made.status().message();
    uint64_t fetched = 0, uploaded = 0;
    for (const Move& move : made->moves) {
      if (move.unit == kNone || !request.workload.units[move.unit].code) continue;
      fetched += move.kind == MoveKind::fetch_weight ? move.bytes : 0;
      uploaded += move.kind == MoveKind::upload_weight ? move.bytes : 0;
      if (move.kind == MoveKind::dequantise_weight) {
        EXPECT_EQ(move.place_bytes, kComputed);
      }
    }
    EXPECT_EQ(uploaded, (2 * 4 - 1) * kCoded) << "forward and backward, and the last use's once for both";
    EXPECT_EQ(fetched, rest == WeightTier::host ? 0 : uploaded);
    const uint64_t adapters = 4 * kBlockElements * 2;
    EXPECT_EQ(line_of(*made, Tier::host, "resting weights"), rest == WeightTier::host ? 4 * kCoded + adapters : 0);
    EXPECT_EQ(line_of(*made, Tier::device, "units under way"), 2 * (kCoded + kComputed + kBlockElements * 2));
    EXPECT_EQ(line_of(*made, Tier::nvme, "slots"), 4 * kCoded + 4 * kBlockElements * 12 * slots_per_tile(request))
        << "what no step writes has one slot";
  }
}

TEST_F(RandomPlans, HaveEveryByteThatTheyTakeInTheirBudget) {
  for_each_plan(600, [](const PlanRequest& drawn, const Plan&, std::mt19937_64&) {
    PlanRequest request = drawn;
    request.process_bytes = 12345;
    request.budgets.host_bytes += request.process_bytes;
    const Result<Plan> made = make_plan(request);
    ASSERT_TRUE(made.ok());
    const Plan& plan = *made;
    auto pieces = [&](Pool which) { return plan.pool_pieces[static_cast<size_t>(which)]; };
    uint64_t weights = 0, states = 0, slots = 0, spilled = 0, retained = 0;
    uint64_t device_weights = 0, device_states = 0, device_gradients = 0;
    for (TileId tile = 0; tile < plan.tiles.size(); ++tile) {
      const Tile& shape = plan.tiles[tile];
      const Placement& placement = plan.placements[tile];
      if (placement.weight_in_host()) weights += shape.weight_bytes;
      if (placement.state_in_host()) states += shape.state_bytes;
      slots += shape.slot_bytes() * (request.workload.units[shape.unit].trainable ? slots_per_tile(request) : 1);
      if (placement.weight_on_device()) device_weights += shape.weight_bytes;
      if (placement.state_on_device()) {
        device_states += shape.state_bytes;
        device_gradients += shape.gradient_bytes;
      }
      const bool waits = plan.clipping && plan.of_tile[tile].update != kNoMove && !placement.state_on_device();
      (!placement.gradient_spills() ? retained : spilled) += waits ? plan.tiles.gradient_bytes_max() : 0;
    }
    std::array<uint64_t, kAreas> filled{};
    for (const Move& move : plan.moves) {
      uint64_t& most = filled[static_cast<size_t>(move.area)];
      most = std::max(most, move.place_offset_bytes + move.place_bytes);
    }
    auto area = [&](Area which) { return filled[static_cast<size_t>(which)]; };
    EXPECT_EQ(line_of(plan, Tier::host, "program"), request.process_bytes);
    EXPECT_EQ(line_of(plan, Tier::host, "tile window") + line_of(plan, Tier::host, "tiles ahead of a verdict"),
              pieces(Pool::window) * plan.tiles.slot_bytes_max());
    EXPECT_EQ(line_of(plan, Tier::host, "tiles ahead of a verdict"), plan.ahead_windows * plan.tiles.slot_bytes_max());
    EXPECT_EQ(line_of(plan, Tier::host, "gradient backlog") + line_of(plan, Tier::host, "leaving gradients") +
                  line_of(plan, Tier::host, "retained gradients") + line_of(plan, Tier::host, "deferred gradients"),
              pieces(Pool::gradient) * plan.tiles.gradient_bytes_max());
    EXPECT_EQ(line_of(plan, Tier::host, "retained gradients"), retained);
    EXPECT_EQ(line_of(plan, Tier::host, "resting weights"), weights);
    EXPECT_EQ(line_of(plan, Tier::host, "resting state"), states);
    EXPECT_EQ(line_of(plan, Tier::host, "accumulated gradients"), plan.sums.bytes);
    EXPECT_EQ(line_of(plan, Tier::device, "resting weights"), device_weights);
    EXPECT_EQ(line_of(plan, Tier::device, "resting state"), device_states);
    EXPECT_GE(line_of(plan, Tier::device, "resting gradients"), device_gradients) << "sums of squares besides";
    EXPECT_GE(line_of(plan, Tier::host, "units under way"), area(Area::host_units));
    EXPECT_GE(line_of(plan, Tier::host, "offloaded activations"), area(Area::offloaded_activations));
    EXPECT_GE(line_of(plan, Tier::host, "downloaded gradients"), area(Area::downloaded_gradients));
    EXPECT_GE(line_of(plan, Tier::device, "units under way"), area(Area::device_units));
    EXPECT_GE(line_of(plan, Tier::device, "gradients under way"), area(Area::device_gradients));
    const Tier computes = request.machine.devices > 0 ? Tier::device : Tier::host;
    EXPECT_GE(line_of(plan, computes, "activations"), area(Area::activations));
    EXPECT_GE(line_of(plan, Tier::nvme, "spilled activations"), area(Area::spilled_activations));
    EXPECT_EQ(line_of(plan, Tier::nvme, "slots"), slots);
    EXPECT_EQ(line_of(plan, Tier::nvme, "spilled gradients"), spilled);
    // Every byte of an arena is in one line, and no two lines share one.
    for (Tier tier : {Tier::host, Tier::device}) {
      uint64_t end = 0;
      for (const BudgetLine& line : plan.budget_lines) {
        if (line.region == Region::none || line.tier != tier) continue;
        EXPECT_GE(line.offset_bytes, end);
        end = line.offset_bytes + line.bytes;
      }
      EXPECT_LE(end, arena_bytes(plan.budget_lines, tier));
      EXPECT_LE(arena_bytes(plan.budget_lines, tier), plan.needed_bytes(tier));
    }
  });
}

}  // namespace
}  // namespace penstock
