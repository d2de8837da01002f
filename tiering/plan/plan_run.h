// PlanRun says which move may be issued next: the one set of rules under which plans are both executed and simulated.
//
// It runs steps of a cyclic plan, at most two at once: the tail of one under the head of the next. Per lane it offers,
// of the moves whose waits are over, the earliest; pieces are taken in plan order, so a later move never starves an
// earlier. Which updates run before the verdict, and which are done again, is StepSpeculation's to say.
//
// Gradients may come in another order than the plan's. States are read ahead of them in plan order, because that hides
// latency; but a tile whose gradient has come is read first, and where no window is free it gets that of a tile whose
// gradient has not, which is read again later. In plan order that never happens.
//
// While a step cannot begin to compute because its first weights are still being written, the drives are left to that:
// no state is read for later. Nor is any read ahead of the verdict of a step that does not speculate while the step
// before is still writing.
//
// An update that begins when the next step has a place for its unit's first weights leaves the tile's there too, and so
// that fetch reads only the others'. Where all are left it waits for no write.
//
// Pure: no clock, no threads, no system calls.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>

#include "tiering/plan/move_set.h"
#include "tiering/plan/plan.h"
#include "tiering/plan/step_speculation.h"

namespace penstock {

// For each move of a plan some of its moves, side by side in memory.
struct MoveLists {
  // The moves that have it among their `waits`, in the plan's order.
  static MoveLists followers(const Plan& plan, std::vector<MoveId> Move::*waits);

  std::span<const MoveId> of(MoveId id) const { return {all.data() + begins[id], all.data() + begins[id + 1]}; }

  std::vector<uint64_t> begins;  // of each move's, and the end
  std::vector<MoveId> all;
};

class PlanRun {
 public:
  // A move of one step.
  struct Ticket {
    uint64_t step;
    MoveId move;
    bool operator==(const Ticket&) const = default;
  };

  // `plan` outlives the run. `on_release` hears of every move whose pool memory has gone back, from inside the calls.
  using OnRelease = std::function<void(Ticket taker)>;
  explicit PlanRun(const Plan& plan, OnRelease on_release = {});

  // Opens a step. REQUIRES: can_begin().
  struct StepChoices {
    bool speculate = true;
    bool durable = true;           // its root is written
    bool may_be_discarded = true;  // until the verdict, writes leave the version of the step before as it is
    // Fewer than planned: those of the plan's first groups are left out. None: as many as planned.
    std::optional<uint32_t> micro_batches = {};
  };
  void begin(uint64_t step, StepChoices choices);
  // At most two steps are open, and the earlier of them has its verdict.
  bool can_begin() const;

  // The next move to issue on `lane`, whose piece of memory is thereby taken and which is thereby in flight; nothing if
  // none may be issued now. On `Lane::none` only commits are offered: releases, gradients and verdicts end inside.
  std::optional<Ticket> next(Lane lane);
  // A move that was issued has ended.
  void ended(Ticket ticket);
  // A move that was issued is on its stream, and an event says when it will have ended: what follows it on streams may
  // be issued, behind that event. ended() is still to come. REQUIRES: is_on_stream() of the move.
  void ordered(Ticket ticket);

  // Told from outside: a tile's gradient. A place for it is taken first (false: none is free, wait), then it is
  // complete. next_gradient is the earliest tile whose gradient may come by the plan.
  std::optional<TileId> next_gradient(uint64_t step) const;
  bool gradient_is_due(uint64_t step, TileId tile) const;
  bool try_take_gradient(uint64_t step, TileId tile);
  void gradient_complete(uint64_t step, TileId tile);
  // The tile gets no gradient in this step, and so no update. REQUIRES: no place was taken.
  void gradient_absent(uint64_t step, TileId tile);
  // The partial norm has passed the clip: what has not been updated waits for the verdict.
  void stop_speculating(uint64_t step);
  void give_verdict(uint64_t step, Verdict verdict);
  // Gives the step up: no further gradients, updates or writes, no root. What was updated in place is the caller's to
  // bring back. REQUIRES: the verdict was not given.
  void abandon(uint64_t step);

  // Open until every move of the step has ended or was skipped.
  bool is_open(uint64_t step) const { return find(step) != nullptr; }
  bool idle() const { return steps_.empty(); }
  bool gradients_complete(uint64_t step) const;
  // Whether the move has ended or was skipped; true for steps that are closed.
  bool is_over(Ticket ticket) const;
  // Whether it was skipped, so that it orders nothing; false for steps that are closed.
  bool is_skipped(Ticket ticket) const;
  // The next step's fetch in whose place an update that was issued leaves the new weight as well; none: in none.
  std::optional<Ticket> leaves_weight_to(Ticket update) const;
  // Whether an update of the step before has left the tile's weight where the fetch brings its unit's.
  bool finds_weight(Ticket fetch, TileId tile) const;
  // Over its lane: of a fetch, without what it finds. REQUIRES: it was issued.
  uint64_t bytes_of(Ticket ticket) const;
  // Which of the step's updates and writes a verdict may take back. REQUIRES: is_open(step).
  const StepSpeculation& speculation(uint64_t step) const;

  uint64_t pool_free(Pool pool) const { return pool_free_[static_cast<size_t>(pool)]; }
  const Plan& plan() const { return plan_; }

  // For messages: the earliest unfinished move of each open step and its state.
  std::string stall_text() const;

 private:
  // parked: its waits are over, but its gate is closed until the verdict, a gradient or a decision.
  // ordered: on its stream, and not known to have ended; its lane has room for others.
  enum class State : uint8_t { waiting, parked, ready, in_flight, ordered, ended, skipped };

  struct TileState {
    bool gradient_held = false;  // its bytes are in host memory, in the place taken for it
    bool gradient_taken = false;
  };

  struct Step {
    Step(uint64_t of_number, const PlanRun& of, StepSpeculation of_step);

    uint64_t number;
    StepSpeculation speculation;
    uint32_t gradients_missing = 0;
    size_t unfinished = 0;
    std::vector<State> state;
    std::vector<bool> left_out;   // of micro-batches that the step does not have; empty where it has all
    std::vector<uint32_t> waits;  // for how many moves
    std::vector<TileState> tiles;
    MoveSet parked;
    MoveSet gradients_due;  // gradient moves whose waits are over and whose place is not taken
    // By lane and by the pool they take from: of those that take, only the first can be next.
    std::array<std::array<MoveSet, kPools>, kLanes> ready;
    std::array<uint32_t, kLanes> ready_count{};  // most lanes have none at most times
    std::array<MoveSet, kPools> takers;          // not yet issued nor skipped
    MoveSet pressing;  // of them, the first reads of tiles that are not deferred and whose gradient was taken
    std::vector<MoveId> windows_held;        // by first reads, in flight or over
    std::vector<bool> weight_is_left;        // by tile: by the step before, in the place of the unit's first fetch
    std::vector<uint32_t> weights_to_leave;  // by unit: of how many tiles they are not there
    std::vector<uint64_t> bytes_left;        // by unit: of the others
  };

  Step* find(uint64_t step);
  const Step* find(uint64_t step) const;
  Step& require(uint64_t step);
  bool gate_open(const Step& step, MoveId id) const;
  MoveId first_taker(const Step& step, Pool pool) const;
  // Whether it is its unit's first fetch, in whose place the step before may have left weights.
  bool may_find_weights(MoveId id) const {
    const Move& move = plan_.moves[id];
    return move.kind == MoveKind::fetch_weight && first_fetch_[move.unit] == id;
  }
  uint64_t room_of(const Step& step, MoveId id) const;
  bool has_room(const Step& step, MoveId id) const;
  MoveId read_for_computing(Lane lane) const;
  bool gives_way(const Step& step, MoveId id) const;
  void press(Step& step, TileId tile);
  bool earlier_step_takes(const Step& step, Pool pool) const;
  bool has_memory(MoveId id) const;
  MoveId read_to_take_back(const Step& step, MoveId wanted_by) const;
  bool waits_without_gradient(const Step& step, MoveId read) const;
  void take_back(Step& step, MoveId read);
  void waits_over(Step& step, MoveId id);
  void make_ready(Step& step, MoveId id);
  void take_from_ready(Step& step, MoveId id);
  void reconsider(Step& step, MoveId id);
  void reconsider_all_parked(Step& step);
  void issue(Step& step, MoveId id);
  void leave_weight(const Step& step, TileId tile);
  void weight_left(const Step& step, TileId tile);
  void finish(Step& step, MoveId id, State how);
  // Those that follow on streams wait no longer for a move that is ordered.
  enum class Followers : uint8_t { all, on_streams, others };
  void tell_followers(Step& step, MoveId id, Followers which);
  void skip(Step& step, MoveId id);
  void skip_if_any(Step& step, MoveId id);
  void leave_out_micro_batches(Step& step, uint32_t given);
  void postpone_updates(Step& step);
  void close_finished_steps();

  void tell_release(const Step& step, MoveId taker) const {
    if (on_release_) on_release_({step.number, taker});
  }

  const Plan& plan_;
  const OnRelease on_release_;
  const MoveLists followers_, followers_next_;  // by what they wait for
  std::vector<bool> on_stream_;                 // by move
  // By unit: what has its weights as the step before has left them, and the first move that fetches them. kNoMove:
  // none.
  std::vector<MoveId> current_, first_fetch_;
  std::vector<uint32_t> first_units_;  // that a step computes with first and updates
  MoveId last_first_read_ = 0;         // behind it in the plan: the reads of redos
  std::deque<Step> steps_;
  std::array<uint64_t, kPools> pool_free_{};
  std::array<uint64_t, kLanes> room_taken_{};
};

}  // namespace penstock
