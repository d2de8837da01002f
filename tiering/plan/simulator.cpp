#include "tiering/plan/simulator.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace penstock {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Simulator {
 public:
  Simulator(const Plan& plan, const MachineProfile& machine, const SimulationOptions& options)
      : plan_(plan), machine_(machine), options_(options), run_(plan), drives_(machine.striped()) {
    for (const Plan::TileMoves& moves : plan.of_tile) gradients_ += moves.gradient != kNoMove;
    passing_share_ = machine.share_by_memory(plan.passing_bytes());
    resting_share_ = machine.share_by_memory(~uint64_t{0});
  }

  Simulation run() {
    result_.steps.resize(options_.steps);
    while (begun_ < options_.steps || !run_.idle()) {
      open_steps();
      issue();
      if (begun_ == options_.steps && run_.idle()) break;
      advance();
    }
    result_.total_s = now_;
    summarise();
    return std::move(result_);
  }

 private:
  struct Work {
    PlanRun::Ticket ticket;
    double left;  // bytes on a drive lane, seconds elsewhere
    double begin_s;
  };

  bool on_drive(Lane lane) const { return lane == Lane::nvme_read || lane == Lane::nvme_write; }

  Verdict verdict_of(uint64_t step) const { return options_.verdict ? options_.verdict(step) : Verdict::confirm; }

  void open_steps() {
    while (begun_ < options_.steps && run_.can_begin() && gradient_step_done_) {
      bool speculate = !options_.speculate || options_.speculate(begun_);
      run_.begin(begun_, {.speculate = speculate, .durable = plan_.durability.durable_after(begun_)});
      result_.steps[begun_].begin_s = now_;
      gradient_step_ = begun_++;
      gradients_done_ = 0;
      gradient_step_done_ = gradients_ == 0;
      if (gradients_ == 0) run_.give_verdict(gradient_step_, Verdict::confirm);
    }
  }

  static double seconds_at(uint64_t bytes, double gbps) {
    return gbps > 0 ? static_cast<double>(bytes) / (gbps * 1e9) : 0;
  }

  double seconds_of(PlanRun::Ticket ticket) const {
    const Move& move = plan_.moves[ticket.move];
    switch (move.lane) {
      case Lane::host_to_device:
        return seconds_at(move.bytes, machine_.host_to_device_gbps);
      case Lane::device_to_host:
        return seconds_at(move.bytes, machine_.device_to_host_gbps);
      case Lane::update: {
        const uint64_t copied_bytes = run_.leaves_weight_to(ticket) ? plan_.tiles[move.tile].weight_bytes : 0;
        return seconds_at(move.bytes + 2 * copied_bytes, machine_.host_gbps);
      }
      case Lane::collective:
        return collective_s(move);
      case Lane::compute:
        return move.seconds;
      default:  // a commit: data flush, root, flush
        return 2 * machine_.flush_s();
    }
  }

  // What comes from ranks of this node and what comes from others pass at once.
  double collective_s(const Move& move) const {
    return std::max(seconds_at(move.bytes - move.network_bytes, machine_.collective_gbps),
                    seconds_at(move.network_bytes, machine_.network_gbps));
  }

  // A move's bytes, and more for what the drives lose because of the memory that they lie in.
  double drive_bytes(PlanRun::Ticket ticket) const {
    const Move& move = plan_.moves[ticket.move];
    const uint64_t bytes = run_.bytes_of(ticket);
    const bool writes = move.kind == MoveKind::write_state || move.kind == MoveKind::write_state_again;
    uint64_t resting = 0;
    if (writes) {
      const Placement& placement = plan_.placements[move.tile];
      if (placement.weight_in_host()) resting += plan_.tiles[move.tile].weight_bytes;
      if (placement.state_in_host()) resting += plan_.tiles[move.tile].state_bytes;
    }
    return static_cast<double>(resting) / resting_share_ + static_cast<double>(bytes - resting) / passing_share_;
  }

  void issue() {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (static_cast<Lane>(lane) == Lane::compute && hands_over()) continue;
      while (std::optional<PlanRun::Ticket> ticket = run_.next(static_cast<Lane>(lane))) {
        const double left = on_drive(static_cast<Lane>(lane)) ? drive_bytes(*ticket) : seconds_of(*ticket);
        const Work work{*ticket, left, now_};
        // A fetch that finds all of its weights waits behind nothing.
        on_drive(static_cast<Lane>(lane)) && left == 0 ? end(work) : work_[lane].push_back(work);
      }
    }
    if (!gradient_left_s_) take_gradient();
  }

  // Who computes in place hands a use's gradients over before it goes on; a device's are fetched from it meanwhile.
  bool hands_over() const { return !plan_.on_device && run_.next_gradient(gradient_step_).has_value(); }

  // Who computes in place adds a tile's gradient up, contribution by contribution, and copies and measures it.
  double hand_over_s(TileId tile) const {
    if (plan_.on_device || plan_.computes.empty()) return 0;
    const uint64_t once = plan_.tiles[tile].gradient_bytes, sum = plan_.tiles[tile].elements * sizeof(float);
    const uint64_t copies = plan_.sums.last_stays[plan_.tiles[tile].unit] ? 2 : 3;
    return seconds_at(copies * once + (plan_.micro_batches - 1) * (once + 2 * sum), machine_.host_gbps);
  }

  // The trainer hands over one gradient after another, and waits where there is no place for one.
  void take_gradient() {
    if (gradient_step_done_) return;
    std::optional<TileId> tile = run_.next_gradient(gradient_step_);
    if (!tile || !run_.try_take_gradient(gradient_step_, *tile)) return;
    gradient_tile_ = *tile;
    gradient_left_s_ = options_.gradient_s ? options_.gradient_s(*tile) : hand_over_s(*tile);
  }

  bool updates() const { return !work_[index(Lane::update)].empty(); }
  // Who computes in place has each of the processors beside an update's thread.
  double share_beside_computing() const {
    return machine_.devices == 0 && updates() && !work_[index(Lane::compute)].empty() ? 0.5 : 1;
  }
  // Who hands over in place is one thread, which those that update help when they have nothing else to do.
  bool hands_over_in_place() const { return gradient_left_s_ && !options_.gradient_s && machine_.devices == 0; }
  double share_of_updates() const {
    const double threads = machine_.threads > 0 ? machine_.threads : 2;
    return hands_over_in_place() ? threads / (threads + 1) : share_beside_computing();
  }
  double hand_over_rate() const { return hands_over_in_place() && updates() ? 1 - share_of_updates() : 1; }

  // Seconds until the first work of a lane ends at the present rates, and those rates.
  double rate_of(Lane lane) const {
    if (lane == Lane::update) return share_of_updates();
    if (lane == Lane::compute) return share_beside_computing();
    if (!on_drive(lane)) return 1;
    bool reads = !work_[index(Lane::nvme_read)].empty(), writes = !work_[index(Lane::nvme_write)].empty();
    if (reads && writes) return drives_.gbps(0.5) * 1e9 / 2;
    return drives_.gbps(lane == Lane::nvme_read ? 1 : 0) * 1e9;
  }

  void advance() {
    const double hand_over = hand_over_rate();
    double soonest = gradient_left_s_ ? *gradient_left_s_ / hand_over : kNever;
    std::array<double, kLanes> rates{};
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (work_[lane].empty()) continue;
      rates[lane] = rate_of(static_cast<Lane>(lane));
      soonest = std::min(soonest, work_[lane].front().left / rates[lane]);
    }
    CHECK(std::isfinite(soonest), "the plan makes no progress: ", run_.stall_text());
    soonest = std::max(0.0, soonest);
    now_ += soonest;
    const bool drives_busy = !work_[index(Lane::nvme_read)].empty() || !work_[index(Lane::nvme_write)].empty();
    if (drives_busy) result_.drives_busy_s += soonest;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (work_[lane].empty()) continue;
      result_.busy_s[lane] += soonest;
      Work& first = work_[lane].front();
      first.left -= soonest * rates[lane];
      // Rounding must not leave a remainder of no length.
      if (first.left <= rates[lane] * 1e-12 * std::max(1.0, now_)) end_first(static_cast<Lane>(lane));
    }
    if (!gradient_left_s_) return;
    *gradient_left_s_ -= soonest * hand_over;
    if (*gradient_left_s_ <= hand_over * 1e-12 * std::max(1.0, now_)) complete_gradient();
  }

  void end_first(Lane lane) {
    const Work work = work_[index(lane)].front();
    work_[index(lane)].pop_front();
    end(work);
  }

  void end(const Work& work) {
    const Move& move = plan_.moves[work.ticket.move];
    const uint64_t bytes = run_.bytes_of(work.ticket);
    SimulatedStep& step = result_.steps[work.ticket.step];
    if (move.lane == Lane::nvme_read) step.read_bytes += bytes;
    if (move.lane == Lane::nvme_write) step.written_bytes += bytes;
    step.found_bytes += move.bytes - bytes;
    step.end_s = now_;
    if (options_.record_spans) result_.spans.push_back({work.ticket.step, work.ticket.move, work.begin_s, now_});
    run_.ended(work.ticket);
  }

  void complete_gradient() {
    gradient_left_s_.reset();
    run_.gradient_complete(gradient_step_, gradient_tile_);
    ++gradients_done_;
    Verdict verdict = verdict_of(gradient_step_);
    if (plan_.clipping && verdict != Verdict::confirm && gradients_done_ >= options_.strike_known_at * gradients_) {
      run_.stop_speculating(gradient_step_);
    }
    if (gradients_done_ < gradients_) return;
    run_.give_verdict(gradient_step_, plan_.clipping ? verdict : Verdict::confirm);
    gradient_step_done_ = true;
  }

  void summarise() {
    const std::vector<SimulatedStep>& steps = result_.steps;
    // A step's end trails into the next, so ends are as far apart as the steps are long. Of many: the first fills the
    // pipeline, and the last has the lanes to itself in its tail.
    const size_t last = steps.size() > 2 ? steps.size() - 2 : steps.size() - 1, first = last > 1 ? 1 : 0;
    result_.step_s =
        last > first ? (steps[last].end_s - steps[first].end_s) / static_cast<double>(last - first) : result_.total_s;
    double most = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (result_.busy_s[lane] <= most) continue;
      most = result_.busy_s[lane];
      result_.bottleneck = static_cast<Lane>(lane);
    }
  }

  const Plan& plan_;
  const MachineProfile& machine_;
  const SimulationOptions& options_;
  PlanRun run_;
  const MixCurve drives_;
  double passing_share_ = 1, resting_share_ = 1;  // of the drives' rate, by where the bytes lie in memory
  uint32_t gradients_ = 0;

  double now_ = 0;
  uint64_t begun_ = 0;
  std::array<std::deque<Work>, kLanes> work_;
  uint64_t gradient_step_ = 0;
  uint32_t gradients_done_ = 0;
  bool gradient_step_done_ = true;
  std::optional<double> gradient_left_s_;  // until it is handed over, at full rate
  TileId gradient_tile_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const Plan& plan, const MachineProfile& machine, const SimulationOptions& options) {
  CHECK(options.steps > 0);
  return Simulator(plan, machine, options).run();
}

}  // namespace penstock
