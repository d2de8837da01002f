#include "tiering/plan/plan.h"

#include <algorithm>

#include <sstream>

namespace penstock {

const char* name_of(Lane lane) {
  static constexpr const char* kNames[kLanes] = {"nvme_read", "nvme_write", "host_to_device", "device_to_host",
                                                 "update",    "collective", "compute",        "none"};
  return kNames[static_cast<size_t>(lane)];
}

const char* name_of(Pool pool) {
  static constexpr const char* kNames[kPools] = {"unit_device", "unit_host", "activation_device", "activation_host",
                                                 "window",      "gradient",  "returned",          "none"};
  return kNames[static_cast<size_t>(pool)];
}

const char* name_of(MoveKind kind) {
  static constexpr const char* kNames[] = {"fetch_weight",
                                           "lift_weight",
                                           "gather",
                                           "forward",
                                           "offload_activation",
                                           "return_activation",
                                           "backward",
                                           "lower_gradient",
                                           "reduce",
                                           "gradient",
                                           "spill_gradient",
                                           "return_gradient",
                                           "read_state",
                                           "update",
                                           "write_state",
                                           "reread_state",
                                           "return_gradient_again",
                                           "update_again",
                                           "write_state_again",
                                           "verdict",
                                           "commit",
                                           "release"};
  return kNames[static_cast<size_t>(kind)];
}

bool Plan::rests_in_host() const {
  return std::any_of(placements.begin(), placements.end(),
                     [](const Placement& placement) { return placement.state == Tier::host; });
}

uint64_t room_of(const Move& move) {
  const bool on_drives = move.lane == Lane::nvme_read || move.lane == Lane::nvme_write;
  return on_drives ? move.bytes : 1;
}

uint64_t Plan::needed_bytes(Tier tier) const {
  uint64_t sum = 0;
  for (const BudgetLine& line : budget_lines) sum += line.tier == tier ? line.bytes : 0;
  return sum;
}

namespace {

bool only_when_struck_or_late(MoveKind kind) {
  switch (kind) {
    case MoveKind::return_gradient:
    case MoveKind::reread_state:
    case MoveKind::return_gradient_again:
    case MoveKind::update_again:
    case MoveKind::write_state_again:
      return true;
    default:
      return false;
  }
}

uint64_t bytes_on(const Plan& plan, Lane lane) {
  uint64_t sum = 0;
  for (const Move& move : plan.moves) {
    if (move.lane == lane && !only_when_struck_or_late(move.kind)) sum += move.bytes;
  }
  return sum;
}

// What only a durable step writes.
uint64_t written_through_bytes(const Plan& plan) {
  uint64_t sum = 0;
  for (const Move& move : plan.moves) {
    if (move.kind == MoveKind::write_state && plan.placements[move.tile].state == Tier::host) sum += move.bytes;
  }
  return sum;
}

}  // namespace

uint64_t Plan::read_bytes() const { return bytes_on(*this, Lane::nvme_read); }
uint64_t Plan::written_bytes() const { return bytes_on(*this, Lane::nvme_write); }

double Plan::mean_written_bytes(const Durability& of) const {
  return static_cast<double>(written_bytes()) -
         (1 - of.durable_share()) * static_cast<double>(written_through_bytes(*this));
}

std::string to_text(const Plan& plan) {
  std::ostringstream out;
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    const Move& move = plan.moves[id];
    out << id << ' ' << name_of(move.kind);
    if (move.lane != Lane::none) out << ' ' << name_of(move.lane);
    if (move.unit != kNone) out << " unit " << move.unit;
    if (move.tile != kNone) out << " tile " << move.tile;
    if (move.micro_batch != kNone) out << " micro_batch " << move.micro_batch;
    if (move.bytes != 0) out << ' ' << move.bytes << " B";
    if (move.seconds != 0) out << ' ' << move.seconds << " s";
    if (move.takes != Pool::none) out << " takes " << move.taken << " of " << name_of(move.takes);
    if (move.gives_back != kNoMove) out << " of " << move.gives_back;
    if (!move.after.empty()) out << " after";
    for (MoveId other : move.after) out << ' ' << other;
    if (!move.after_previous.empty()) out << " after previous";
    for (MoveId other : move.after_previous) out << ' ' << other;
    out << '\n';
  }
  return out.str();
}

namespace {

// What an engine that runs the plan takes.
uint64_t host_bytes(const Plan& plan) {
  auto capacity = [&](Pool pool) { return plan.pool_capacity[static_cast<size_t>(pool)]; };
  uint64_t sum = capacity(Pool::window) * plan.tiles.slot_bytes_max() + plan.accumulated_bytes +
                 (capacity(Pool::gradient) + capacity(Pool::returned)) * plan.tiles.gradient_bytes_max() +
                 capacity(Pool::unit_host) + capacity(Pool::activation_host);
  for (uint32_t tile = 0; tile < plan.tiles.size(); ++tile) {
    if (plan.placements[tile].weight == Tier::host) sum += plan.tiles[tile].weight_bytes;
    if (plan.placements[tile].state == Tier::host) sum += plan.tiles[tile].state_bytes;
  }
  return sum;
}

}  // namespace

Status validate(const Plan& plan) {
  auto broken = [](MoveId id, const Move& move, const std::string& how) {
    return Status(Code::kUsage, text("plan: move ", id, " (", name_of(move.kind), "): ", how));
  };
  std::vector<bool> given_back(plan.moves.size(), false);
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    const Move& move = plan.moves[id];
    for (MoveId other : move.after) {
      if (other >= id) return broken(id, move, text("waits for move ", other, ", which comes later"));
    }
    for (MoveId other : move.after_previous) {
      if (other >= plan.moves.size()) return broken(id, move, text("waits for move ", other, ", which does not exist"));
    }
    if (move.takes != Pool::none && move.taken > plan.pool_capacity[static_cast<size_t>(move.takes)]) {
      return broken(id, move,
                    text("takes ", move.taken, " of pool ", name_of(move.takes), ", which holds ",
                         plan.pool_capacity[static_cast<size_t>(move.takes)]));
    }
    if (move.kind == MoveKind::release) {
      if (move.gives_back >= id || plan.moves[move.gives_back].takes == Pool::none) {
        return broken(id, move, "gives back what no earlier move took");
      }
      if (given_back[move.gives_back]) return broken(id, move, text("gives back move ", move.gives_back, " twice"));
      given_back[move.gives_back] = true;
    }
  }
  for (MoveId id = 0; id < plan.moves.size(); ++id) {
    if (plan.moves[id].takes != Pool::none && !given_back[id]) {
      return broken(id, plan.moves[id], "takes memory that nothing gives back");
    }
  }
  if (host_bytes(plan) > plan.needed_bytes(Tier::host)) {
    return Status(Code::kUsage, text("plan: takes ", host_bytes(plan), " B of host memory, and its budget lines say ",
                                     plan.needed_bytes(Tier::host)));
  }
  return Status();
}

}  // namespace penstock
