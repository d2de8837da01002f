// Plan: the immutable list of moves of one training step. It is cyclic: moves may wait for moves of the step before, so
// that the tail of an update runs under the next forward.
//
// Every move is carried by one lane and waits for the moves it names. PlanRun decides what may be issued next; the
// executor carries the moves out, the simulator lets virtual time pass instead. Both see the same plan through PlanRun.
//
// Memory. Units and activations under way lie where the plan says: a move that fills such a place waits for the moves
// after which what was there before is not needed any more. Windows and places for gradients are equal pieces, because
// gradients may come in another order than planned; a piece is taken when a move is issued, or when a gradient comes.
//
// Streams. Where a device computes, its moves may follow one another before they have ended, ordered by events: see
// is_on_stream().
//
// What rests on a device stays there: a unit's weights are computed with where they rest, its gradient is added up and
// rounded there, and its tiles are updated there, in place, on the compute lane beside the passes. Only the sums of
// squares of its gradient come down each step, for the norm. The tiles themselves come down where a durable step writes
// them through, as it does what rests in host memory. With clipping they are updated after the verdict, in place as
// well: nothing of theirs is speculative, and nothing is redone.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tiering/plan/durability.h"
#include "tiering/plan/memory_layout.h"
#include "tiering/plan/sum_layout.h"
#include "tiering/tile_map.h"

namespace penstock {

// A resource that begins its moves in order, as many at once as Plan::lane_room says. The two nvme lanes share the
// drives' time.
enum class Lane : uint8_t { nvme_read, nvme_write, host_to_device, device_to_host, update, collective, compute, none };
constexpr size_t kLanes = 8;
constexpr size_t index(Lane lane) { return static_cast<size_t>(lane); }

// Names say the way: fetched from the drives to host memory and spilled back, uploaded from there to a device and
// downloaded; a tile's state is read from its slot and written to another.
// In runtime/engine, executor_pass.cpp and executor_device.cpp carry out those of a training pass, executor_tiles.cpp
// those of an update. PlanRun ends weights_current, verdict and release by itself, and is told of gradient.
enum class MoveKind : uint8_t {
  // A training pass: `use` and `micro_batch` say which computation, `unit` whose weights or gradient.
  weights_current,      // the unit's weights are what the step before has left: ends inside, needs no lane
  fetch_weight,         // nvme -> host
  upload_weight,        // host -> device
  gather,               // from all ranks
  dequantise_weight,    // from the codes that a frozen unit rests in, to what is computed with
  forward,              // compute: granted to the trainer, who ends it
  download_activation,  // device -> host
  spill_activation,     // host -> nvme
  fetch_activation,     // nvme -> host
  upload_activation,    // host -> device
  backward,             // compute, recomputation included
  download_gradient,    // device -> host
  download_squares,     // device -> host: of a gradient that stays on the device, its sums of squares by block
  reduce,               // among ranks

  // An update; `tile` says which.
  gradient,        // the tile's gradient is complete where it is needed: told from outside
  spill_gradient,  // host -> nvme: retained for a redo, or until the verdict, where host memory ran out
  fetch_gradient,  // nvme -> host, if the update could not use it while it was here
  read_state,      // nvme -> host
  update,          // speculative until the verdict
  download_state,  // device -> host: of a tile that rests on the device, before it is written
  write_state,     // host -> nvme, into a free slot
  reread_state,    // the redo of a struck speculative update: the old slot once more
  fetch_gradient_again,
  update_again,
  write_state_again,

  verdict,  // the norm is known
  commit,   // flush, root, flush: the step is durable
  release,  // memory may be used by others
};

using MoveId = uint32_t;
constexpr MoveId kNoMove = std::numeric_limits<MoveId>::max();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// Equal pieces of host memory, given back by a `release`. fetched_gradient: for what had been spilled to the drives.
enum class Pool : uint8_t { window, gradient, fetched_gradient, none };
constexpr size_t kPools = 4;

struct Move {
  MoveKind kind;
  Lane lane = Lane::none;
  Pool takes = Pool::none;
  Area area = Area::none;  // that it fills; with its place there
  uint32_t unit = kNone;
  uint32_t use = kNone;
  TileId tile = kNone;
  // For what passes several micro-batches through a unit: the last of them.
  uint32_t micro_batch = kNone;
  uint64_t bytes = 0;          // over the lane
  uint64_t network_bytes = 0;  // of them, what a collective takes from other nodes
  uint64_t place_offset_bytes = 0, place_bytes = 0;
  double seconds = 0;           // of a compute move
  MoveId gives_back = kNoMove;  // of a release: the move that took the memory
  MoveId source = kNoMove;      // of what is copied from a place: the move that filled it
  std::vector<MoveId> after = {};
  std::vector<MoveId> after_previous = {};  // of the step before
};

// Where a tile's bytes rest between steps. A unit's tiles rest on the device all or none, with the state of one that is
// trained.
struct Placement {
  Tier weight = Tier::nvme;
  Tier state = Tier::nvme;
  Tier retained = Tier::host;  // where its gradient waits for the verdict

  bool weight_in_host() const { return weight == Tier::host; }
  bool weight_on_drives() const { return weight == Tier::nvme; }
  bool weight_on_device() const { return weight == Tier::device; }
  bool state_in_host() const { return state == Tier::host; }
  bool state_on_drives() const { return state == Tier::nvme; }
  bool state_on_device() const { return state == Tier::device; }
  // Updated in place, in memory that does not outlive the process: only durable steps write it.
  bool is_updated_in_place() const { return state != Tier::nvme; }
  bool gradient_spills() const { return retained == Tier::nvme; }
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
    // Where the device rounds it before it is downloaded: it is the unit's whole gradient then.
    std::optional<uint64_t> rounded_offset_bytes = {};
    // The unit rests on the device: its whole gradient is rounded into the unit's place in
    // Region::device_resting_gradients, for the update there, with its sums of squares behind it.
    bool stays = false;
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
  uint64_t ahead_windows = 0;  // of them, those for what is read ahead of the verdict of a step that does not speculate
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
  // Host memory that a step's bytes pass through again and again: what rests there is not of it.
  uint64_t passing_bytes() const;
  // Whether some tile's state rests in host memory or on the device, so that a durable step writes more than another.
  bool has_state_in_memory() const;
  // Whether the unit's weights, and its state where it is trained, rest on the device.
  bool rests_on_device(uint32_t unit) const { return placements[tiles.first_of(unit)].weight_on_device(); }
  // Moved by a step that is neither clipped nor skipped and whose updates are all speculative; at most: see
  // `found_bytes`.
  uint64_t bytes_on(Lane lane) const;
  uint64_t read_bytes() const { return bytes_on(Lane::nvme_read) - found_bytes; }
  uint64_t written_bytes() const { return bytes_on(Lane::nvme_write); }  // by one that is durable
  // On average over steps of which some are durable.
  double mean_written_bytes(const Durability& of) const;

  // Weights that such a step finds where updates of the step before have left them, as predicted: see PlanRun.
  uint64_t found_bytes = 0;

  MoveId verdict = kNoMove;
  MoveId commit = kNoMove;

  // Of each tile; kNoMove where the tile has none.
  struct TileMoves {
    MoveId gradient = kNoMove, spill = kNoMove, fetch_gradient = kNoMove, read = kNoMove, update = kNoMove,
           write = kNoMove, reread = kNoMove, fetch_again = kNoMove, update_again = kNoMove, write_again = kNoMove,
           release_gradient = kNoMove, download = kNoMove;
    bool is_deferred = false;      // updated behind all others, ahead of the next forward
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
