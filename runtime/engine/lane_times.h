// LaneTimes says how long each lane was busy, and which of them was waited for: that of the earliest move under way.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <utility>

#include "tiering/plan/plan.h"

namespace penstock::engine {

using LaneSeconds = std::array<double, kLanes>;

class LaneTimes {
 public:
  using Key = std::pair<uint64_t, MoveId>;  // step, move: the earlier is the less

  LaneTimes() : at_(Clock::now()) {}

  // From now on under way on the lane.
  void begin(Key move, Lane lane) {
    under_way_[move] = lane;
    ++on_lane_[static_cast<size_t>(lane)];
  }
  void end(Key move) {
    pass();
    auto ended = under_way_.extract(move);
    --on_lane_[static_cast<size_t>(ended.mapped())];
  }
  // Books the time until now.
  void pass() {
    const Clock::time_point now = Clock::now();
    const double passed_s = std::chrono::duration<double>(now - std::exchange(at_, now)).count();
    const Lane first = under_way_.empty() ? Lane::none : under_way_.begin()->second;
    waited_s_[static_cast<size_t>(first)] += passed_s;
    for (size_t lane = 0; lane < kLanes; ++lane) busy_s_[lane] += on_lane_[lane] > 0 ? passed_s : 0;
  }

  // Seconds that passed while the earliest move under way was on each lane; `none` where nothing was under way.
  const LaneSeconds& waited_s() const { return waited_s_; }
  // Seconds with a move of each lane under way.
  const LaneSeconds& busy_s() const { return busy_s_; }

 private:
  using Clock = std::chrono::steady_clock;

  std::map<Key, Lane> under_way_;
  std::array<uint32_t, kLanes> on_lane_{};  // how many of them
  LaneSeconds waited_s_{}, busy_s_{};
  Clock::time_point at_;
};

}  // namespace penstock::engine
