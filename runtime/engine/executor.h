// Executor carries out a plan: it issues every move that PlanRun offers to the lane that carries it, and tells PlanRun
// when the move has ended. One thread makes every decision; drives, update workers and the trainer's thread only
// answer.
//
// The life of one tile in one step, top to bottom: begin_read, begin_update, begin_write; when the update was
// speculative and the gradients struck, once more. Of a unit's weights: begin_fetch, then the computes that use them,
// each granted to the trainer and ended by it. What touches bytes carries leases on them: requests to drives and
// devices, updates, grants. A TileWork, and a place of the plan's, hold theirs besides until the plan's `release`.
//
// Where a device computes, weights are uploaded and gradients downloaded (executor_device.cpp). Such a move is put on
// its stream behind the events of those before it, and those that follow it on streams need not wait for its end. What
// rests there is updated there too; begin_download_state brings a tile down that is to be written.
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
#include "runtime/engine/drive_bytes.h"
#include "runtime/engine/drives_meter.h"
#include "runtime/engine/host_memory.h"
#include "runtime/engine/lane_times.h"
#include "runtime/engine/mailbox.h"
#include "runtime/engine/rank_side.h"
#include "runtime/engine/spill_files.h"
#include "tiering/plan/plan_run.h"
#include "tiering/step_numbers.h"

namespace penstock::engine {

// What a step's updates must know before the verdict.
struct StepSetup {
  // PlanRun's: one more than that of the step begun before it, which may have been given up. Engine counts those done.
  uint64_t number = 0;
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
    const RankSide* ranks;  // whose side adds gradients up, and brings what was added up; none: this one is alone
  };
  explicit Executor(Parts parts);
  ~Executor();

  // Waits for events, acts on them, issues what may be issued. Returns after at most `timeout`.
  size_t turn(std::chrono::milliseconds timeout);

  const Status& status() const { return status_; }
  bool can_begin() const { return run_.can_begin(); }
  uint64_t next_number() const { return next_number_; }
  void begin(StepSetup setup);

  // Calls `then` once `ready` holds, or with the failure.
  void when(std::function<bool()> ready, std::function<void(Status)> then);

  // A compute move that may begin: its weights are where they are used, or on a device will be with the events of its
  // grant. It is the trainer's until end_compute().
  bool is_granted(MoveId compute) const { return granted_.contains({step_number(), compute}); }
  // Whether the unit's weights are what the step before has left. REQUIRES: a step is open, or was.
  bool has_current_weights(uint32_t unit) const { return run_.is_over({step_number(), weights_current_.at(unit)}); }
  // By the use's units.
  std::vector<std::span<std::byte>> weights_of(const Compute& compute) const;
  // Whether the weights of a pass that is still to come are where it will read them, and where.
  bool has_weights_of(const Compute& compute) const;
  std::vector<std::span<std::byte>> weights_before(const Compute& compute) const;
  // Where the pass leaves or finds what backward needs of forward; empty where the trainer keeps that itself.
  std::span<std::byte> activation_of(const Compute& compute) const;
  // What the trainer's stream must wait for before it touches them, or any place that the plan gave the pass.
  const std::vector<Event>& events_before(MoveId compute) const { return granted_.at({step_number(), compute}).before; }
  // `done`: when the trainer's stream will have ended it; an empty one has been reached.
  void end_compute(MoveId compute, const Event& done);

  // Sums of gradients that were downloaded from the device, in the plan's order, whichever copy is found to have ended
  // first: they are added up in it. Whoever takes one ends it.
  bool has_downloaded() const { return !downloaded_.empty() && is_next_downloaded(downloaded_.begin()->first); }
  std::optional<DownloadedSum> take_downloaded();
  // Whether all that the open step downloads has been taken in, and ended; or all of a pass and of those before it.
  bool has_ended_downloads() const { return has_ended_downloads_before(downloaded_from_.end()); }
  bool has_ended_downloads_of(const Compute& pass) const;
  void end_download(PlanRun::Ticket ticket);

  // Where the tile's gradient goes; nothing while there is no place. It comes back with gradient_complete().
  std::optional<Lease> try_take_gradient(TileId tile);
  // `squares`: its sums of squares, by block.
  void gradient_complete(TileId tile, Lease gradient, std::span<const double> squares);
  // The same of a tile that rests on the device, where its gradient is. REQUIRES: its squares have come down.
  void gradient_on_device(TileId tile, std::span<const double> squares);
  void gradient_absent(TileId tile) { run_.gradient_absent(step_number(), tile); }
  // Instead of those that the step began with. REQUIRES: no gradient of the unit is complete.
  void set_numbers(uint32_t unit, UnitNumbers numbers) {
    if (status_.ok()) open_steps_.rbegin()->second.setup.numbers[unit] = std::move(numbers);
  }
  bool gradients_complete() const { return run_.gradients_complete(step_number()); }

  // The norm is known: `clip_factor` of a strike. `payload` goes into the step's root.
  void give_verdict(Verdict verdict, double clip_factor, RootPayload payload);
  // `done`: when the trainer's stream will have ended what it was granted.
  void abandon(const Event& done);
  // Whether it was given up: what is still to come of its passes will not.
  bool is_abandoned() const { return open_steps_.rbegin()->second.abandoned; }
  // The store has all that rests in memory.
  void forget_unwritten() { unwritten_.clear(); }
  // The first failure stays, with the step that the store has.
  void fail(const Status& status);
  bool idle() const { return run_.idle() && in_flight_ == 0; }
  // Of the last step that had a verdict.
  const RootPayload& last_payload() const { return last_payload_; }

  const LaneTimes& lane_times() const { return lane_times_; }
  DriveBytes drive_bytes() const { return drive_bytes_; }
  DrivesUnderLoad drives_load() const { return drives_meter_.load(); }

 private:
  using Ticket = PlanRun::Ticket;
  using MoveKey = std::pair<uint64_t, MoveId>;  // step, move

  // One tile in one step. While a request is under way, the leases that it carries are with it.
  struct TileWork {
    Lease window, gradient, fetched_gradient;
    std::optional<aio::TileStore::Reading> reading;
    std::vector<uint64_t> checksums;
  };
  // What an update touches.
  struct UpdateLeases {
    Lease window, gradient;
    Lease weight;  // that rests in host memory, or backward's copy of it
    Lease state;   // that rests in host memory
    Lease left;    // where the next step's pass finds the new weight
  };
  struct OpenStep {
    StepSetup setup;
    double squares = 0;
    std::optional<Verdict> verdict;
    std::vector<UnitNumbers> struck;  // setup.numbers with the clip factor, after a strike
    RootPayload payload;              // as it was when the step ended
    bool abandoned = false;

    const UnitNumbers& numbers(uint32_t unit) const { return struck.empty() ? setup.numbers[unit] : struck[unit]; }
  };
  // A compute move that the trainer has: leases on its weights; or on a device, on what it touches of what rests there,
  // and the events that it waits for.
  struct Grant {
    std::vector<Lease> weights;
    std::vector<Lease> resting;
    Lease activation;
    std::vector<Event> before;
  };
  struct Waiter {
    std::function<bool()> ready;
    std::function<void(Status)> then;
  };

  void issue();
  void begin_move(Ticket ticket);
  bool is_on_device(Area area) const;
  // `moved`: whether a lane was asked for anything.
  void ended(Ticket ticket, const Status& status, bool moved = true);
  void released(Ticket taker);
  void begin_commit(Ticket ticket);

  // executor_tiles.cpp: the update.
  void begin_read(Ticket ticket, const Move& move);
  void begin_update(Ticket ticket, const Move& move);
  // Of a trained unit that is fetched: where in the host memory for units.
  uint64_t place_of_weight(const Move& fetch, const Tile& tile) const;
  void begin_write(Ticket ticket, const Move& move);
  void begin_spill(Ticket ticket, const Move& move);
  void begin_fetch_gradient(Ticket ticket, const Move& move);
  void give_back_read_slot(TileWork& work);
  void read_ended(Ticket ticket, const Status& status);
  void update_ended(Ticket ticket, const cpu_optim::TileReport& report);
  void write_ended(Ticket ticket, TileSlot place, const Status& status);
  TileWork& work(Ticket ticket, TileId tile) { return work_[{ticket.step, tile}]; }
  // The tile's first element as UnitNumbers and stochastic rounding count: in the unit of the model, also where this
  // rank has a shard of it.
  uint64_t first_numbered(const Tile& tile) const {
    return tile.first_element + (parts_.ranks != nullptr ? parts_.ranks->origin_of(tile.unit).first_element : 0);
  }
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
  // Of what rests on the device: the weights that the pass reads, and the gradients that it leaves there.
  void lend_resting(const Compute& compute, Grant& grant);
  void begin_spill_activation(Ticket ticket, const Move& move);
  void begin_fetch_activation(Ticket ticket, const Move& move);
  // The place of a move that fills an area of host memory, to write or to read there.
  Lease lend_place(const Move& move) { return area_of(move.area).lend(move.place_offset_bytes, move.place_bytes); }
  Lease share_place(const Move& move) { return area_of(move.area).share(move.place_offset_bytes, move.place_bytes); }
  BufferArea& area_of(Area area);
  // What the step's move has been lent, to be used with it by others. REQUIRES: it has not been given back.
  const Lease& place_of(MoveKey move) const;

  // executor_device.cpp: moves on streams.
  void begin_upload_weight(Ticket ticket, const Move& move);
  void begin_dequantise_on_device(Ticket ticket, const Move& move);
  void begin_download_activation(Ticket ticket, const Move& move);
  void begin_upload_activation(Ticket ticket, const Move& move);
  void begin_download_gradient(Ticket ticket, const Move& move);
  Lease lease_of_sum(MoveKey placed_by, uint64_t offset_bytes, uint64_t bytes);
  void begin_update_on_device(Ticket ticket, const Move& move);
  Status launch_update(Ticket ticket, const Move& move, Stream stream);
  void begin_download_state(Ticket ticket, const Move& move);
  void state_downloaded(Ticket ticket, Lease window);
  void gradient_downloaded(Ticket ticket);
  bool is_next_downloaded(MoveKey key) const;
  // A sum on the device: where in the place that a pass has taken. Squares rest there, in no such place.
  struct SumPlace {
    MoveId placed_by = kNoMove;
    uint64_t offset_bytes = 0;
  };
  bool has_ended_downloads_before(std::map<MoveId, SumPlace>::const_iterator end) const;
  // Copies whole places, or runs of them, behind what the move is behind. `then` gets the target's lease.
  void put_copy(Ticket ticket, Lease source, Lease target, std::function<void(Ticket, Lease)> then);
  void put_copy(Ticket ticket, std::span<const CopyRun> runs, Lease source, Lease target,
                std::function<void(Ticket, Lease)> then);
  // Another lease on the place, which others may have from now on: what they put on streams comes behind this.
  Lease pass_on(Lease place);
  // Until the move's end, which may be after others have what it touches.
  void keep_until_end(Ticket ticket, Lease place);
  // A move whose end an event on a stream says.
  void put_mark(Ticket ticket, const Event& done);
  // Those of the moves before it that are on their streams, seen through releases and moves that were skipped.
  std::vector<Event> events_before(Ticket ticket) const;
  void note_sources_of_downloads();
  size_t poll_device();
  void stream_ended(Ticket ticket, const Status& status);

  uint64_t step_number() const { return open_steps_.rbegin()->first; }
  uint64_t deadline(Ticket ticket) const { return ticket.step * parts_.plan.moves.size() + ticket.move; }

  void sleep(std::chrono::milliseconds timeout);
  size_t answer_waiters();
  void forget_closed_steps();

  Parts parts_;
  cpu_optim::TileUpdater updater_;
  PlanRun run_;
  Status status_;
  // The tiles in memory that are newer there than in the store. In host memory with the checksums of what lies there;
  // on the device without: they are taken when the bytes have come down.
  std::map<TileId, std::vector<uint64_t>> unwritten_;
  uint64_t next_number_ = 0;
  RootPayload last_payload_;
  std::map<uint64_t, OpenStep> open_steps_;  // that are open; the last is the one that gets gradients
  std::map<std::pair<uint64_t, TileId>, TileWork> work_;
  std::map<MoveKey, Lease> placed_;  // units in the places that the plan gave them, until their release
  std::map<MoveKey, Grant> granted_;
  std::map<MoveId, const Compute*> computes_;
  std::map<uint32_t, MoveId> weights_current_;          // by unit
  std::map<MoveId, SumPlace> downloaded_from_;          // by the move that downloads it
  std::map<MoveKey, Event> on_stream_;                  // moves that have not ended, and when they will have
  std::map<MoveKey, std::vector<Lease>> in_use_there_;  // by them, of what rests on the device
  std::vector<Ticket> marked_;                          // of them, the computes: their ends are looked for
  std::map<MoveKey, DownloadedSum> downloaded_;         // and not taken
  mutable MoveKey downloads_over_;  // the downloads of its step before it are over, and need no second look
  size_t downloads_taken_ = 0;
  std::list<Waiter> waiters_;
  std::vector<Ticket> held_back_;  // writes that the store does not let begin yet
  size_t in_flight_ = 0;
  DrivesMeter drives_meter_;
  LaneTimes lane_times_;
  DriveBytes drive_bytes_;
};

}  // namespace penstock::engine
