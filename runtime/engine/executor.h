// Executor carries out a plan: it issues every move that PlanRun offers to the lane that carries it, and tells PlanRun
// when the move has ended. One thread makes every decision; drives, update workers and the trainer's thread only
// answer.
//
// The life of one tile in one step, top to bottom: begin_read, begin_update, begin_write; when the update was
// speculative and the gradients struck, once more. Of a unit's weights: begin_fetch, then the computes that use them,
// each granted to the trainer and ended by it. A request to a drive or a device carries the leases of what it touches;
// an update's stay with its TileWork until the plan's `release`, which waits for the update and for the write.
//
// Where a device computes, weights are lifted there and gradients lowered (executor_device.cpp). Such a move is put on
// its stream behind the events of those before it, and those that follow it on streams need not wait for its end.
//
// The first failure is kept in status(): no further move begins, what is under way ends, every wait is answered with
// it. What the store then holds is SlotTable's promise.
//
// Made, used and destroyed by the decision thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "aio/store/tile_store.h"
#include "cpu_optim/update_workers.h"
#include "runtime/engine/activation_files.h"
#include "runtime/engine/device_memory.h"
#include "runtime/engine/drives_meter.h"
#include "runtime/engine/host_memory.h"
#include "runtime/engine/mailbox.h"
#include "runtime/engine/moved.h"
#include "runtime/engine/spill_files.h"
#include "tiering/plan/plan_run.h"
#include "tiering/step_numbers.h"

namespace penstock::engine {

// What a step's updates must know before the verdict.
struct StepSetup {
  uint64_t round = 0;                // counts attempts; the plan's step number
  std::vector<UnitNumbers> numbers;  // by unit; gradient_scale without clip factor
  double inverse_loss_scale = 1;
  double certain_strike = 0;  // a sum of squares above it is certain to strike; 0: none does
  bool skips_overflow = false;
  PlanRun::StepChoices choices;
};

class Executor {
 public:
  struct Parts {
    const Plan& plan;
    const Workload& workload;
    HostMemory& memory;
    DeviceMemory* device;  // none: it computes in place
    aio::TileStore& store;
    SpillFiles& spill;
    ActivationFiles& activations;
    IoEngine& io;
    cpu_optim::UpdateWorkers& workers;
    Mailbox& mailbox;
    int io_descriptor;        // the I/O engine's
    double load_least_run_s;  // NewPlanRule::least_run_s
    const std::function<void(uint64_t step)>& on_durable;
    const std::function<void(uint32_t unit, uint64_t first, std::span<const std::byte> weights)>& on_updated;
  };
  explicit Executor(Parts parts);
  ~Executor();

  // Waits for events, acts on them, issues what may be issued. Returns after at most `timeout`.
  size_t turn(std::chrono::milliseconds timeout);

  const Status& status() const { return status_; }
  bool can_begin() const { return run_.can_begin(); }
  uint64_t next_round() const { return next_round_; }
  void begin(StepSetup setup);

  // Calls `then` once `ready` holds, or with the failure.
  void when(std::function<bool()> ready, std::function<void(Status)> then);

  // A compute move that may begin: its weights are where they are used, or on a device will be with the events of its
  // grant. It is the trainer's until end_compute().
  bool is_granted(MoveId compute) const { return granted_.contains({round(), compute}); }
  // Whether the unit's weights are what the step before has left. REQUIRES: a step is open, or was.
  bool has_current_weights(uint32_t unit) const { return run_.is_over({round(), weights_current_.at(unit)}); }
  // By the use's units.
  std::vector<std::span<std::byte>> weights_of(const Compute& compute) const;
  // Where the pass leaves or finds what backward needs of forward; empty where the trainer keeps that itself.
  std::span<std::byte> activation_of(const Compute& compute) const;
  // What the trainer's stream must wait for before it touches them, or any place that the plan gave the pass.
  const std::vector<Event>& events_before(MoveId compute) const { return granted_.at({round(), compute}).before; }
  // `done`: when the trainer's stream will have ended it; an empty one has been reached.
  void end_compute(MoveId compute, const Event& done);

  // Sums of gradients that the device has lowered, in the plan's order, whichever copy is found to have ended first:
  // they are added up in it. Whoever takes one ends it.
  bool has_lowered() const { return !lowered_.empty() && is_next_lowered(lowered_.begin()->first); }
  std::optional<LoweredSum> take_lowered();
  void end_lowering(PlanRun::Ticket ticket);

  // Where the tile's gradient goes; nothing while there is no place. It comes back with gradient_complete().
  std::optional<Lease> try_take_gradient(TileId tile);
  // `squares`: its sums of squares, by block.
  void gradient_complete(TileId tile, Lease gradient, std::span<const double> squares);
  void gradient_absent(TileId tile) { run_.gradient_absent(round(), tile); }
  // Instead of those that the step began with. REQUIRES: no gradient of the unit is complete.
  void set_numbers(uint32_t unit, UnitNumbers numbers) {
    if (status_.ok()) rounds_.rbegin()->second.setup.numbers[unit] = std::move(numbers);
  }
  bool gradients_complete() const { return run_.gradients_complete(round()); }

  // The norm is known: `clip_factor` of a strike. `payload` goes into the step's root.
  void give_verdict(Verdict verdict, double clip_factor, RootPayload payload);
  // `done`: when the trainer's stream will have ended what it was granted.
  void abandon(const Event& done);
  // What rests in host memory is what the store has.
  void forget_unwritten() { unwritten_.clear(); }
  // The first failure stays.
  void fail(const Status& status);
  bool idle() const { return run_.idle() && in_flight_ == 0; }
  // Of the last step that had a verdict.
  const RootPayload& last_payload() const { return last_payload_; }

  // Seconds that passed while the earliest move under way was on each lane; `none` where nothing was under way.
  using LaneSeconds = std::array<double, kLanes>;
  const LaneSeconds& waited_s() const { return waited_s_; }
  Moved moved() const { return moved_; }
  DrivesUnderLoad drives_load() const { return drives_meter_.load(); }

 private:
  using Ticket = PlanRun::Ticket;
  using MoveKey = std::pair<uint64_t, MoveId>;  // step, move

  // One tile in one step. While a request is under way, the leases that it carries are with it.
  struct TileWork {
    Lease window, gradient, returned;
    std::optional<aio::TileStore::Reading> reading;
    std::vector<uint64_t> checksums;
  };
  // What an update touches besides its tile's own leases.
  struct UpdateLeases {
    Lease weight;  // that rests in host memory, or backward's copy of it
    Lease state;   // that rests in host memory
  };
  struct Round {
    StepSetup setup;
    double squares = 0;
    std::optional<Verdict> verdict;
    std::vector<UnitNumbers> struck;  // setup.numbers with the clip factor, after a strike
    RootPayload payload;              // as it was when the step ended
    bool abandoned = false;

    const UnitNumbers& numbers(uint32_t unit) const { return struck.empty() ? setup.numbers[unit] : struck[unit]; }
  };
  // A compute move that the trainer has: leases on its weights, or on a device the events that these wait for.
  struct Grant {
    std::vector<Lease> weights;
    Lease activation;
    std::vector<Event> before;
  };
  struct Waiter {
    std::function<bool()> ready;
    std::function<void(Status)> then;
  };

  void issue();
  void begin_move(Ticket ticket);
  // `moved`: whether a lane was asked for anything.
  void ended(Ticket ticket, const Status& status, bool moved = true);
  void released(Ticket taker);
  void begin_commit(Ticket ticket);

  // executor_tiles.cpp: the update.
  void begin_read(Ticket ticket, const Move& move);
  void begin_update(Ticket ticket, const Move& move);
  void begin_write(Ticket ticket, const Move& move);
  void begin_spill(Ticket ticket, const Move& move);
  void begin_return(Ticket ticket, const Move& move);
  void end_reading(TileWork& work);
  void read_ended(Ticket ticket, const Status& status);
  void update_ended(Ticket ticket, const cpu_optim::TileReport& report);
  void write_ended(Ticket ticket, TileSlot place, const Status& status);
  TileWork& work(Ticket ticket, TileId tile) { return work_[{ticket.step, tile}]; }
  // Moves a tile's bytes between its slot and where they are in memory: extents count from the tile's first byte.
  enum class Way { in, out };
  void move_tile(Ticket ticket, TileId tile, Way way, const std::vector<Extent>& extents,
                 std::function<void(Status)> then);
  // Only the weight comes back after a skip.
  bool is_restored(Ticket ticket) const;

  // executor_pass.cpp: weights, activations and computing.
  void begin_fetch(Ticket ticket, const Move& move);
  void begin_dequantise(Ticket ticket, const Move& move);
  void begin_compute(Ticket ticket);
  void begin_spill_activation(Ticket ticket, const Move& move);
  void begin_fetch_activation(Ticket ticket, const Move& move);
  // The place of a move that fills an area of host memory, to write or to read there.
  Lease lend_place(const Move& move) { return area_of(move.area).lend(move.place_offset_bytes, move.place_bytes); }
  Lease share_place(const Move& move) { return area_of(move.area).share(move.place_offset_bytes, move.place_bytes); }
  BufferArea& area_of(Area area);

  // executor_device.cpp: moves on streams.
  void begin_lift(Ticket ticket, const Move& move);
  void begin_dequantise_on_device(Ticket ticket, const Move& move);
  void begin_offload(Ticket ticket, const Move& move);
  void begin_return_activation(Ticket ticket, const Move& move);
  void begin_lower(Ticket ticket, const Move& move);
  void lowering_arrived(Ticket ticket, Lease arrived);
  bool is_next_lowered(MoveKey key) const;
  // Copies whole places, behind what the move is behind. `then` gets the target's lease.
  void put_copy(Ticket ticket, Lease source, Lease target, std::function<void(Ticket, Lease)> then);
  // A move whose end an event on a stream says.
  void put_mark(Ticket ticket, const Event& done);
  // Those of the moves before it that are on their streams, seen through releases and moves that were skipped.
  std::vector<Event> events_before(Ticket ticket) const;
  void collect_events(MoveKey of, std::set<MoveKey>& seen, std::vector<Event>& events) const;
  void note_sources_of_lowering();
  size_t poll_device();
  void stream_ended(Ticket ticket, const Status& status);

  uint64_t round() const { return rounds_.rbegin()->first; }
  uint64_t deadline(Ticket ticket) const { return ticket.step * parts_.plan.moves.size() + ticket.move; }

  void sleep(std::chrono::milliseconds timeout);
  size_t answer_waiters();
  void forget_closed_rounds();
  void account();

  Parts parts_;
  cpu_optim::TileUpdater updater_;
  PlanRun run_;
  Status status_;
  // Of tiles that rest in host memory: checksums of what lies there, while the store has an older version.
  std::map<TileId, std::vector<uint64_t>> unwritten_;
  uint64_t next_round_ = 0;
  RootPayload last_payload_;
  std::map<uint64_t, Round> rounds_;  // that are open; the last is the one that gets gradients
  std::map<std::pair<uint64_t, TileId>, TileWork> work_;
  std::map<MoveKey, Lease> placed_;  // units in the places that the plan gave them, until their release
  std::map<MoveKey, Grant> granted_;
  std::map<MoveId, const Compute*> computes_;
  std::map<uint32_t, MoveId> weights_current_;  // by unit
  std::map<MoveId, uint64_t> lowered_from_;     // by move: where in Area::device_gradients
  std::map<MoveKey, Event> on_stream_;          // moves that have not ended, and when they will have
  std::vector<Ticket> marked_;                  // of them, the computes: their ends are looked for
  std::map<MoveKey, LoweredSum> lowered_;       // and not taken
  size_t lowered_taken_ = 0;
  std::list<Waiter> waiters_;
  std::vector<Ticket> held_back_;  // writes that the store does not let begin yet
  std::map<MoveKey, Lane> under_way_;
  size_t in_flight_ = 0;
  DrivesMeter drives_meter_;
  LaneSeconds waited_s_{};
  std::chrono::steady_clock::time_point accounted_;
  Moved moved_;
};

}  // namespace penstock::engine
