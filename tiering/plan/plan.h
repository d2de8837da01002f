// Plan: the immutable list of moves and uses of one training step. It is cyclic: moves may wait for moves of the step
// before, so that the tail of an update runs under the next forward.
//
// Every move is carried by one lane and waits for the moves it names. Memory is taken from a pool when a move is issued
// and goes back with a `release`. PlanRun decides what may be issued next; the executor carries the moves out, the
// simulator lets virtual time pass instead. Both see the same plan through the same PlanRun.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tiering/plan/durability.h"
#include "tiering/tile_map.h"

namespace penstock {

// A resource that carries moves one after another. The two nvme lanes share the drives' time.
enum class Lane : uint8_t { nvme_read, nvme_write, host_to_device, device_to_host, update, collective, compute, none };
constexpr size_t kLanes = 8;

enum class MoveKind : uint8_t {
  // A training pass; `unit` and `micro_batch` say which.
  fetch_weight,        // nvme -> host
  lift_weight,         // host -> device
  gather,              // from all ranks
  forward,             // compute
  offload_activation,  // device -> host
  return_activation,   // host -> device
  backward,            // compute, recomputation included
  lower_gradient,      // device -> host
  reduce,              // among ranks

  // An update; `tile` says which.
  gradient,         // the tile's gradient is complete in host memory: told from outside
  spill_gradient,   // host -> nvme: retained for a redo, or until the verdict, where host memory ran out
  return_gradient,  // nvme -> host, if the update could not use it while it was here
  read_state,       // nvme -> host
  update,           // speculative until the verdict
  write_state,      // host -> nvme, into a free slot
  reread_state,     // the redo of a struck speculative update: the old slot once more
  return_gradient_again,
  update_again,
  write_state_again,

  verdict,  // the norm is known
  commit,   // flush, root, flush: the step is durable
  release,  // memory goes back to its pool
};

using MoveId = uint32_t;
constexpr MoveId kNoMove = std::numeric_limits<MoveId>::max();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

enum class Pool : uint8_t {
  unit_device,
  unit_host,
  activation_device,
  activation_host,
  window,
  gradient,
  returned,
  none
};
constexpr size_t kPools = 8;

struct Move {
  MoveKind kind;
  Lane lane = Lane::none;
  Pool takes = Pool::none;
  uint32_t unit = kNone;
  uint32_t tile = kNone;
  uint32_t micro_batch = kNone;
  uint64_t bytes = 0;           // over the lane
  uint64_t taken = 0;           // from the pool: bytes, or pieces for window, gradient and returned
  double seconds = 0;           // of a compute move
  MoveId gives_back = kNoMove;  // of a release: the move whose pool memory goes back
  std::vector<MoveId> after = {};
  std::vector<MoveId> after_previous = {};  // of the step before
};

// Where a tile's bytes rest between steps.
struct Placement {
  Tier weight = Tier::nvme;
  Tier state = Tier::nvme;
  Tier retained = Tier::host;  // where its gradient waits for the verdict
};

struct BudgetLine {
  Tier tier;
  std::string name;
  uint64_t bytes;
};

struct Plan {
  explicit Plan(TileMap map) : tiles(std::move(map)) {}

  TileMap tiles;
  std::vector<Placement> placements;  // by tile
  std::vector<Move> moves;            // in order of priority
  std::array<uint64_t, kPools> pool_capacity{};
  // In flight at once: bytes on the drives, moves on the other lanes. What is larger goes alone.
  std::array<uint64_t, kLanes> lane_room{};
  std::vector<BudgetLine> budget_lines;  // what the plan takes of each tier
  bool clipping = false;
  Durability durability;
  uint32_t micro_batch_group = 1;
  uint64_t accumulated_bytes = 0;  // fp32 sums of gradients under way
  ActivationChoice activations = ActivationChoice::keep;

  uint64_t needed_bytes(Tier tier) const;
  // Whether some tile's state does, so that a durable step writes more than another.
  bool rests_in_host() const;
  // Moved by a step whose gradients do not strike and whose updates are all speculative.
  uint64_t read_bytes() const;
  uint64_t written_bytes() const;  // by one that is durable
  // On average over steps of which some are durable.
  double mean_written_bytes(const Durability& of) const;

  MoveId verdict = kNoMove;
  MoveId commit = kNoMove;

  // Of each tile; kNoMove where the tile has none.
  struct TileMoves {
    MoveId gradient = kNoMove, spill = kNoMove, return_gradient = kNoMove, read = kNoMove, update = kNoMove,
           write = kNoMove, reread = kNoMove, return_again = kNoMove, update_again = kNoMove, write_again = kNoMove,
           release_gradient = kNoMove;
  };
  std::vector<TileMoves> of_tile;
};

const char* name_of(Lane lane);
const char* name_of(MoveKind kind);
const char* name_of(Pool pool);

// What a move takes of its lane's room.
uint64_t room_of(const Move& move);

// One line a move: `17 read_state nvme_read tile 3 10485760 B after 12 14`.
std::string to_text(const Plan& plan);

// Whether a plan keeps its own rules: moves wait only for earlier ones, every release names a taker, no move takes more
// than its pool can ever hold, budget lines hold all that is taken. For tests, and once when an engine starts.
Status validate(const Plan& plan);

}  // namespace penstock
