// How Engine's verbs wait for the decision thread and book the time. For this folder alone.
#pragma once

#include <chrono>
#include <functional>
#include <numeric>

#include "runtime/engine/engine.h"
#include "runtime/engine/engine_core.h"
#include "runtime/engine/seconds_since.h"

namespace penstock::engine {

using Clock = std::chrono::steady_clock;

// What a verb has left half done must neither be trained on nor become durable with a later step.
inline Status fail_if_half_done(EngineCore& core, const Status& status) {
  if (!status.ok()) core.executor().fail(status);
  return core.executor().status();
}

// Runs `then` on the decision thread once `ready` holds, and books the time as stalls of the lanes waited for.
template <typename Function>
Status Engine::wait_for(std::function<bool(EngineCore&)> ready, Function then) {
  Answer<Status> answer;
  LaneSeconds before{}, after{};
  const Clock::time_point asked = Clock::now();
  thread_->mailbox().post([&] {
    Executor& executor = core_->executor();
    before = executor.lane_times().waited_s();
    executor.when([&] { return ready(*core_); },
                  [&](Status status) {
                    if (status.ok()) status = then(*core_);
                    after = core_->executor().lane_times().waited_s();
                    answer.give(status);
                  });
  });
  Status status = answer.wait();
  double waited = seconds_since(asked), accounted = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) accounted += after[lane] - before[lane];
  for (size_t lane = 0; lane < kLanes; ++lane) {
    double share = accounted > 0 ? (after[lane] - before[lane]) / accounted : (lane + 1 == kLanes ? 1.0 : 0.0);
    report_.stall_s[lane] += waited * share;
  }
  if (!status.ok() && now_ == Now::in_step) now_ = Now::between_steps;  // nothing is left to end or to discard
  return status;
}

template <typename Function>
Status Engine::when_idle(Function then) {
  return wait_for([](EngineCore& core) { return core.executor().idle(); }, std::move(then));
}

template <typename Function>
Status Engine::wait_taking_in(std::function<bool(EngineCore&)> ready, Function then) {
  while (true) {
    std::optional<DownloadedSum> downloaded;
    PENSTOCK_TRY(wait_for([&](EngineCore& core) { return ready(core) || core.executor().has_downloaded(); },
                          [&](EngineCore& core) {
                            if (ready(core)) return then(core);
                            downloaded = core.executor().take_downloaded();
                            return Status();
                          }));
    if (!downloaded) return Status();
    left_ = Clock::now();  // what has passed is booked
    PENSTOCK_TRY(as_intake([&] { return take_in(*downloaded); }));
  }
}

// What does not wait for a lane is booked as intake.
template <typename Function>
Status Engine::as_intake(Function work) {
  auto stalled = [&] { return std::accumulate(report_.stall_s.begin(), report_.stall_s.end(), 0.0); };
  report_.trainer_s += seconds_since(left_);
  const Clock::time_point start = Clock::now();
  const double stalled_before = stalled();
  const Status status = work();
  report_.intake_s += seconds_since(start) - (stalled() - stalled_before);
  left_ = Clock::now();
  return status;
}

}  // namespace penstock::engine
