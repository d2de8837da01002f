#include "tiering/plan/collective_moves.h"

#include <map>

#include "tiering/plan/plan_moves.h"
#include "tiering/plan/visits.h"

namespace penstock {
namespace {

class Insertion {
 public:
  Insertion(const Plan& plan, const std::vector<VisitTraffic>& traffic, const std::vector<bool>& ahead)
      : source_(plan),
        plan_(plan),
        traffic_(traffic),
        ahead_(ahead),
        visits_(visits_of(plan)),
        now_(plan.moves.size(), kNoMove),
        last_passes_(traffic.size(), kNoMove),
        reduces_(traffic.size(), kNoMove) {
    const size_t visits = visits_.empty() ? 0 : visits_.back() + 1;
    CHECK(traffic.size() == visits && ahead.size() == visits, "traffic of ", traffic.size(), " of ", visits, " visits");
  }

  Plan result() {
    std::map<MoveId, size_t> passes;
    for (size_t i = 0; i < visits_.size(); ++i) passes[source_.computes[i].move] = i;
    plan_.moves.clear();
    for (MoveId id = 0; id < source_.moves.size(); ++id) {
      const auto pass = passes.find(id);
      Move move = source_.moves[id];
      for (MoveId& before : move.after) before = now_[before];
      if (pass != passes.end()) begin_visit(pass->second, move);
      if (move.kind == MoveKind::weights_current) current_[move.unit] = static_cast<MoveId>(plan_.moves.size());
      // A unit's gradients follow the last pass of their visit.
      if (move.kind == MoveKind::gradient && visit_ != kNone) move.after.push_back(reduces_[visit_]);
      now_[id] = add(plan_, std::move(move));
      if (pass != passes.end()) end_pass(pass->second);
    }
    renumber();
    return std::move(plan_);
  }

 private:
  void begin_visit(size_t pass, Move& compute) {
    const uint32_t visit = visits_[pass];
    if (pass > 0 && visits_[pass - 1] == visit) return;
    auto of_visit = [&](const std::vector<MoveId>& moves, uint32_t back) {
      return visit < back ? kNoMove : moves[visit - back];
    };
    if (traffic_[visit].gathered_bytes > 0) {
      Move gather{.kind = MoveKind::gather,
                  .lane = Lane::collective,
                  .use = compute.use,
                  .micro_batch = compute.micro_batch,
                  .bytes = traffic_[visit].gathered_bytes};
      gather.after = {of_visit(last_passes_, ahead_[visit] ? 2 : 1), of_visit(reduces_, ahead_[visit] ? 2 : 1)};
      for (const Compute::Weights& weights : source_.computes[pass].weights) {
        gather.after.push_back(weights.brought_by != kNoMove ? now_[weights.brought_by] : current_.at(weights.unit));
      }
      compute.after.push_back(add(plan_, std::move(gather)));
    }
    compute.after.push_back(of_visit(reduces_, 2));
  }

  void end_pass(size_t pass) {
    const uint32_t visit = visit_ = visits_[pass];
    last_passes_[visit] = now_[source_.computes[pass].move];
    const bool is_last = pass + 1 == visits_.size() || visits_[pass + 1] != visit;
    if (!is_last || traffic_[visit].reduced_bytes == 0) return;
    reduces_[visit] = add(plan_, {.kind = MoveKind::reduce,
                                  .lane = Lane::collective,
                                  .use = source_.computes[pass].use,
                                  .micro_batch = source_.computes[pass].micro_batch,
                                  .bytes = traffic_[visit].reduced_bytes,
                                  .after = {last_passes_[visit]}});
  }

  void renumber() {
    auto renumber = [this](MoveId& id) {
      if (id != kNoMove) id = now_[id];
    };
    for (Move& move : plan_.moves) {
      renumber(move.gives_back);
      renumber(move.source);
      for (MoveId& before : move.after_previous) renumber(before);
    }
    for (Compute& compute : plan_.computes) {
      renumber(compute.move);
      renumber(compute.activation);
      for (Compute::Weights& weights : compute.weights) renumber(weights.brought_by);
    }
    renumber(plan_.verdict);
    renumber(plan_.commit);
    for (Plan::TileMoves& tile : plan_.of_tile) {
      for (MoveId* id : {&tile.gradient, &tile.spill, &tile.fetch_gradient, &tile.read, &tile.update, &tile.write,
                         &tile.reread, &tile.fetch_again, &tile.update_again, &tile.write_again, &tile.release_gradient,
                         &tile.download, &tile.weight_copy}) {
        renumber(*id);
      }
    }
  }

  const Plan& source_;
  Plan plan_;
  const std::vector<VisitTraffic>& traffic_;
  const std::vector<bool>& ahead_;
  const std::vector<uint32_t> visits_;
  std::vector<MoveId> now_;                    // by move of the source
  std::vector<MoveId> last_passes_, reduces_;  // by visit
  std::map<uint32_t, MoveId> current_;         // by unit
  uint32_t visit_ = kNone;                     // of the last pass so far
};

}  // namespace

Plan with_collectives(const Plan& plan, const std::vector<VisitTraffic>& traffic, const std::vector<bool>& ahead) {
  return Insertion(plan, traffic, ahead).result();
}

uint64_t collective_bytes(const Plan& plan, MoveKind kind) {
  uint64_t bytes = 0;
  for (const Move& move : plan.moves) bytes += move.kind == kind ? move.bytes : 0;
  return bytes;
}

}  // namespace penstock
