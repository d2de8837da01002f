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
  static constexpr const char* kNames[kPools] = {"window", "gradient", "fetched_gradient", "none"};
  return kNames[static_cast<size_t>(pool)];
}

const char* name_of(MoveKind kind) {
  static constexpr const char* kNames[] = {"weights_current",
                                           "fetch_weight",
                                           "upload_weight",
                                           "gather",
                                           "dequantise_weight",
                                           "forward",
                                           "download_activation",
                                           "spill_activation",
                                           "fetch_activation",
                                           "upload_activation",
                                           "backward",
                                           "download_gradient",
                                           "download_squares",
                                           "reduce",
                                           "gradient",
                                           "spill_gradient",
                                           "fetch_gradient",
                                           "read_state",
                                           "update",
                                           "download_state",
                                           "write_state",
                                           "reread_state",
                                           "fetch_gradient_again",
                                           "update_again",
                                           "write_state_again",
                                           "verdict",
                                           "commit",
                                           "release"};
  return kNames[static_cast<size_t>(kind)];
}

bool Plan::has_state_in_memory() const {
  return std::any_of(placements.begin(), placements.end(),
                     [](const Placement& placement) { return placement.is_updated_in_place(); });
}

uint64_t room_of(const Move& move) {
  const bool on_drives = move.lane == Lane::nvme_read || move.lane == Lane::nvme_write;
  return on_drives ? move.bytes : 1;
}

bool is_on_stream(const Plan& plan, const Move& move) {
  if (!plan.on_device) return false;
  switch (move.kind) {
    case MoveKind::upload_weight:
    case MoveKind::dequantise_weight:
    case MoveKind::forward:
    case MoveKind::backward:
    case MoveKind::download_activation:
    case MoveKind::upload_activation:
    case MoveKind::download_gradient:
    case MoveKind::download_squares:
    case MoveKind::download_state:
      return true;
    case MoveKind::update:
      return plan.placements[move.tile].state_on_device();
    case MoveKind::release: {
      const Area area = plan.moves[move.gives_back].area;
      return area == Area::device_units || area == Area::device_gradients || area == Area::activations;
    }
    default:
      return false;
  }
}

uint64_t Plan::needed_bytes(Tier tier) const { return penstock::needed_bytes(budget_lines, tier); }

uint64_t Plan::passing_bytes() const {
  uint64_t bytes = 0;
  for (const BudgetLine& line : budget_lines) {
    const bool rests = line.region == Region::resting_weights || line.region == Region::resting_states;
    if (line.tier == Tier::host && line.region != Region::none && !rests) bytes += line.bytes;
  }
  return bytes - std::min(bytes, ahead_windows * tiles.slot_bytes_max());  // mostly they are empty
}

namespace {

bool only_when_struck_or_late(MoveKind kind) {
  switch (kind) {
    case MoveKind::fetch_gradient:
    case MoveKind::reread_state:
    case MoveKind::fetch_gradient_again:
    case MoveKind::update_again:
    case MoveKind::write_state_again:
      return true;
    default:
      return false;
  }
}

// What only a durable step writes.
uint64_t written_through_bytes(const Plan& plan) {
  uint64_t sum = 0;
  for (const Move& move : plan.moves) {
    if (move.kind == MoveKind::write_state && plan.placements[move.tile].is_updated_in_place()) sum += move.bytes;
  }
  return sum;
}

}  // namespace

uint64_t Plan::bytes_on(Lane lane) const {
  uint64_t sum = 0;
  for (const Move& move : moves) {
    if (move.lane == lane && !only_when_struck_or_late(move.kind)) sum += move.bytes;
  }
  return sum;
}

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
    if (move.use != kNone) out << " use " << move.use;
    if (move.tile != kNone) out << " tile " << move.tile;
    if (move.micro_batch != kNone) out << " micro_batch " << move.micro_batch;
    if (move.bytes != 0) out << ' ' << move.bytes << " B";
    if (move.seconds != 0) out << ' ' << move.seconds << " s";
    if (move.takes != Pool::none) out << " takes a " << name_of(move.takes);
    if (move.area != Area::none) {
      out << " fills " << name_of(move.area) << " from " << move.place_offset_bytes << ' ' << move.place_bytes << " B";
    }
    if (move.gives_back != kNoMove) out << " of " << move.gives_back;
    if (move.source != kNoMove) out << " from " << move.source;
    if (!move.after.empty()) out << " after";
    for (MoveId other : move.after) out << ' ' << other;
    if (!move.after_previous.empty()) out << " after previous";
    for (MoveId other : move.after_previous) out << ' ' << other;
    out << '\n';
  }
  return out.str();
}

}  // namespace penstock
