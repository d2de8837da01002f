// Plan: the immutable list of moves of one training step. It is cyclic: moves may wait for moves of the step before, so
// that the tail of an update runs under the next forward.
//
// Every move is carried by one lane and waits for the moves it names. PlanRun decides what may be issued next; the
// executor carries the moves out, the simulator lets virtual time pass instead. Both see the same plan through PlanRun.
//
// Memory. Units and activations under way lie where the plan says: a move that fills such a place waits for the moves
// after which what was there before is not needed any more. Windows and places for gradients are equal pieces, because
// gradients may come in another order than planned; a piece is taken when a move is issued. Both go back by `release`.
//
// Streams. Where a device computes, its moves may follow one another before they have ended, ordered by events: see
// is_on_stream().
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tiering/plan/durability.h"
#include "tiering/plan/memory_layout.h"
#include "tiering/tile_map.h"

namespace penstock {

// A resource that begins its moves in order, as many at once as Plan::lane_room says. The two nvme lanes share the
// drives' time.
enum class Lane : uint8_t { nvme_read, nvme_write, host_to_device, device_to_host, update, collective, compute, none };
constexpr size_t kLanes = 8;

// In runtime/engine, executor_pass.cpp carries out those of a training pass and executor_tiles.cpp those of an update.
// PlanRun itself ends weights_current, verdict and release, and is told of gradient.
enum class MoveKind : uint8_t {
  // A training pass: `use` and `micro_batch` say which computation, `unit` whose weights or gradient.
  weights_current,     // the unit's weights are what the step before has left: ends inside, needs no lane
  fetch_weight,        // nvme -> host
  lift_weight,         // host -> device
  gather,              // from all ranks
  dequantise_weight,   // from the codes that a frozen unit rests in, to what is computed with
  forward,             // compute: granted to the trainer, who ends it
  offload_activation,  // device -> host
  spill_activation,    // host -> nvme
  fetch_activation,    // nvme -> host
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
  release,  // memory may be used by others
};

using MoveId = uint32_t;
constexpr MoveId kNoMove = std::numeric_limits<MoveId>::max();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// Equal pieces of host memory, taken when a move is issued.
enum class Pool : uint8_t { window, gradient, returned, none };
constexpr size_t kPools = 4;

struct Move {
  MoveKind kind;
  Lane lane = Lane::none;
  Pool takes = Pool::none;
  Area area = Area::none;  // that it fills; with its place there
  uint32_t unit = kNone;
  uint32_t use = kNone;
  uint32_t tile = kNone;
  // For what passes several micro-batches through a unit: the last of them.
  uint32_t micro_batch = kNone;
  uint64_t bytes = 0;  // over the lane
  uint64_t place_offset_bytes = 0, place_bytes = 0;
  double seconds = 0;           // of a compute move
  MoveId gives_back = kNoMove;  // of a release: the move that took the memory
  MoveId source = kNoMove;      // of what is copied from a place: the move that filled it
  std::vector<MoveId> after = {};
  std::vector<MoveId> after_previous = {};  // of the step before
};

// Where a tile's bytes rest between steps.
struct Placement {
  Tier weight = Tier::nvme;
  Tier state = Tier::nvme;
  Tier retained = Tier::host;  // where its gradient waits for the verdict
};

enum class Direction : uint8_t { forward, backward };

// A pass of one micro-batch through a use, and what brings the weights of the use's units to where they are used.
struct Compute {
  struct Weights {
    uint32_t unit = 0;
    MoveId brought_by = kNoMove;  // none: they rest there
  };

  Direction direction = Direction::forward;
  uint32_t use = 0;
  uint32_t micro_batch = 0;
  MoveId move = kNoMove;
  std::vector<Weights> weights = {};  // in the order of the use's units
  MoveId activation = kNoMove;        // the move in whose place forward leaves, and backward finds, what is kept
  // On a device: where in Area::device_gradients a backward pass adds up the gradient of each trainable unit.
  struct Sum {
    uint32_t unit = 0;
    uint64_t offset_bytes = 0;
    // Where the device rounds it before it is lowered: it is the unit's whole gradient then.
    std::optional<uint64_t> rounded_offset_bytes = {};
  };
  std::vector<Sum> sums = {};
};

struct Plan {
  explicit Plan(TileMap map) : tiles(std::move(map)) {}

  TileMap tiles;
  std::vector<Placement> placements;  // by tile
  std::vector<Move> moves;            // in order of priority
  std::vector<Compute> computes;      // in the order in which the trainer asks for them
  std::array<uint64_t, kPools> pool_pieces{};
  // In flight at once: bytes on the drives, moves on the other lanes. What is larger goes alone.
  std::array<uint64_t, kLanes> lane_room{};
  std::vector<BudgetLine> budget_lines;  // what the plan takes of each tier, and where
  SumLayout sums;                        // of gradients that have several contributions
  bool clipping = false;
  bool on_device = false;  // computes there, with memory of its own; else in place, in host memory
  Durability durability;
  uint32_t micro_batches = 1;
  uint32_t micro_batch_group = 1;
  std::vector<ActivationChoice> activations;  // by use
  bool forward_in_steps = false;              // has room for passes that change nothing beside those of the step
  bool stores_activations = false;            // in the engine's memory; else they are the trainer's, and only counted

  uint64_t needed_bytes(Tier tier) const;
  // Whether some tile's state does, so that a durable step writes more than another.
  bool rests_in_host() const;
  // Moved by a step that is neither clipped nor skipped and whose updates are all speculative.
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
    MoveId weight_copy = kNoMove;  // the fetch whose copy of the weights the first update uses, instead of reading them
  };
  std::vector<TileMoves> of_tile;
};

const char* name_of(Lane lane);
const char* name_of(MoveKind kind);
const char* name_of(Pool pool);

// What a move takes of its lane's room.
uint64_t room_of(const Move& move);

// Whether the move is ordered by events: it may be issued when those before it are on their streams, and need not have
// ended. Releases of a device's memory are, and what copies or computes there.
bool is_on_stream(const Plan& plan, const Move& move);
// Whether all micro-batches pass through a unit before the next is used.
inline bool is_vertical(const Plan& plan) { return plan.micro_batch_group >= plan.micro_batches; }

// One line a move: `17 read_state nvme_read tile 3 10485760 B after 12 14`.
std::string to_text(const Plan& plan);

// Whether a plan keeps its own rules: moves wait only for earlier ones, every release names a taker, places lie in
// their areas, and nobody fills a place that is still in use. For tests, and once when an engine starts.
Status validate(const Plan& plan);

}  // namespace penstock
