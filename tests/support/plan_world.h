// A world of numbers in which a plan is carried out move by move, in whatever order a seed dictates, to see whether it
// computes what a plain loop does, with the weights that a plain loop computes with, and whether it ever breaks a rule
// of memory or slots. No bytes, no time.
#pragma once

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tiering/plan/plan_run.h"

namespace penstock::test {

struct WorldOptions {
  uint64_t seed = 1;
  uint64_t steps = 4;
  std::vector<Verdict> verdicts;  // by step; missing ones confirm
  std::vector<bool> speculate;    // by step; missing ones do
  uint32_t slots = 2;
  bool some_absent = false;          // some tiles get no gradient in some steps
  bool fewer_micro_batches = false;  // than planned, in some steps
  bool streams = false;              // moves on streams are followed before they end
  bool begins_late = false;          // some time after it might, as a trainer does that reads its data
  enum class Gradients { as_planned, backwards, shuffled } gradients = Gradients::as_planned;
};

class PlanWorld {
 public:
  PlanWorld(const Plan& plan, const WorldOptions& options);

  // Runs every step to its end; the first broken rule, or an empty string.
  std::string run();

  uint64_t moves_issued(MoveKind kind) const {
    auto found = issued_.find(kind);
    return found == issued_.end() ? 0 : found->second;
  }
  // Issued on a stream while one before it, on which it waits there, had not ended.
  uint64_t moves_ahead() const { return ahead_; }
  // Of tiles, by their updates, where the next step's fetch found them.
  uint64_t weights_left() const { return weights_left_; }

 private:
  // A tile's history as one number: what a plain loop would have in its place.
  using History = uint64_t;
  using MoveKey = std::pair<uint64_t, MoveId>;  // step, move
  struct Slot {
    History history = 0;
    int readers = 0, writers = 0;
  };
  struct TileWorld {
    std::vector<Slot> slots;
    size_t current = 0, committing = 0, durable = 0;
    long unconfirmed = -1;
    History memory = 0;         // where the state rests in host memory or on the device
    History memory_weight = 0;  // where the weight does
    struct OfStep {
      History window = 0;  // what was read, or updated, there
      size_t writing_to = 0, reading_from = 0;
      bool downloading = false;  // what rests on the device, behind nothing that orders it on streams
      bool gradient_here = false, gradient_on_nvme = false, gradient_returned = false;
    };
    std::map<uint64_t, OfStep> of_step;
    int spills = 0, returns = 0;  // under way, to and from its one place for a spilled gradient
  };

  Verdict verdict(uint64_t step) const {
    return plan_.clipping && step < options_.verdicts.size() ? options_.verdicts[step] : Verdict::confirm;
  }
  bool absent(uint64_t step, TileId tile) const {
    return options_.some_absent && (step * 31 + tile * 7 + options_.seed) % 4 == 0;
  }
  void fail(const std::string& how) {
    if (failure_.empty()) failure_ = how;
  }
  // The tile whose gradient comes next; nothing while none may.
  std::optional<uint32_t> next_gradient(uint64_t step);
  void begin_move(PlanRun::Ticket ticket);
  void end_move(PlanRun::Ticket ticket);
  void begin_write(TileWorld& tile, uint32_t id, uint64_t step, bool speculative);
  void update(TileWorld& tile, uint32_t id, uint64_t step, bool speculative);
  // Of each tile of a unit, before `step`.
  void check_weights_of_compute(PlanRun::Ticket ticket);
  void check_place(PlanRun::Ticket ticket);
  void fill_place(PlanRun::Ticket ticket);
  void leave_weight(PlanRun::Ticket update);
  void released(PlanRun::Ticket taker);
  // Of the moves under way, those that a move is behind on streams: of its own step, through releases.
  bool waits_on_stream(PlanRun::Ticket ticket) const;
  void check_pools();
  void check_room(Lane lane);
  static History after(History before, uint64_t step, Verdict factor);

  const Plan& plan_;
  const WorldOptions options_;
  PlanRun run_;
  std::mt19937_64 random_;
  std::vector<TileWorld> tiles_;
  std::vector<uint32_t> coming_;  // tiles that await their gradient, the next one last
  std::vector<PlanRun::Ticket> in_flight_;
  std::set<std::pair<uint64_t, MoveId>> ordered_;  // of them, on their streams
  uint64_t ahead_ = 0;
  std::map<MoveKind, uint64_t> issued_;
  std::map<uint64_t, std::vector<bool>> speculated_;
  std::map<uint64_t, std::vector<History>> expected_;  // of every tile after each step that has its verdict
  // What fills a place of an area, until its release; of fetched weights, the versions of the unit's tiles.
  std::map<MoveKey, std::vector<History>> filled_;
  // In the place of a fetch that has not begun, by tile: nothing while its update is under way.
  std::map<MoveKey, std::map<TileId, std::optional<History>>> left_;
  uint64_t weights_left_ = 0;
  std::map<MoveId, const Compute*> computes_;
  std::set<uint64_t> stopped_;  // steps whose partial norm has passed the clip
  std::string failure_;
};

}  // namespace penstock::test
