// Engine's verbs for passes that change nothing: between steps, and within one.
#include <utility>

#include "runtime/engine/engine_waits.h"

namespace penstock::engine {

Status Engine::begin_forward() {
  std::lock_guard lock(verbs_);
  if (now_ == Now::in_step) return begin_forward_in_step();
  PENSTOCK_TRY(expect(Now::between_steps, "begin_forward"));
  if (options_.request.workload.scope != StepScope::training) {
    return Status(Code::kUsage, "begin_forward: the plan has no passes through the model, only updates",
                  "open it for whole steps (whole_steps, or StepScope::training) with the model's uses");
  }
  PENSTOCK_TRY(when_idle([](EngineCore& core) {
    core.begin_forward(ForwardWeights::Room::of_the_pass);
    return Status();
  }));
  now_ = Now::in_forward;
  has_acquired_ = false;
  return Status();
}

// From the first update on, some weights would be those of the step and others those from before it.
Status Engine::begin_forward_in_step() {
  if (!plan_->forward_in_steps) {
    return Status(Code::kUsage, "begin_forward: called inside a step, where the plan has no room for it",
                  "plan with forward_in_steps, or end the step first");
  }
  if (has_acquired_) {
    return Status(Code::kUsage,
                  text("begin_forward: ", words_of(pass_of(plan_->computes[next_compute_])), " is acquired"),
                  "release it first");
  }
  if (updates_) {
    return Status(Code::kUsage, "begin_forward: the step has complete gradients, and weights are being updated",
                  "evaluate before the last micro-batch's backward passes, or between steps");
  }
  report_.trainer_s += seconds_since(left_);
  PENSTOCK_TRY(wait_for([](EngineCore&) { return true; },
                        [](EngineCore& core) {
                          core.begin_forward(ForwardWeights::Room::own);
                          return Status();
                        }));
  left_ = Clock::now();
  after_forward_ = Now::in_step;
  now_ = Now::in_forward;
  return Status();
}

Status Engine::end_forward() {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_forward, "end_forward"));
  PENSTOCK_TRY_ASSIGN(done, end_of_reading());
  now_ = std::exchange(after_forward_, Now::between_steps);
  return thread_->ask([this, &done] {
    if (done) core_->forward().release(done);
    core_->end_forward();
    return core_->executor().status();
  });
}

Status Engine::expect_forward(const ComputePass& pass, const char* verb) const {
  const size_t uses = options_.request.workload.uses.size();
  if (pass.use >= uses) return Status(Code::kUsage, text(verb, ": use ", pass.use, " of ", uses));
  if (pass.direction == Direction::forward) return Status();
  return Status(Code::kUsage, text(verb, ": ", words_of(pass),
                                   ": between begin_forward() and end_forward() there are forward passes only"));
}

Result<std::vector<UnitWeights>> Engine::acquire_in_forward(const ComputePass& pass, Stream stream) {
  PENSTOCK_TRY(expect_forward(pass, "acquire"));
  if (has_acquired_) return Status(Code::kUsage, "acquire: the pass before has not been released");
  report_.trainer_s += seconds_since(left_);
  std::vector<UnitWeights> weights;
  const Status held = wait_for(
      [use = pass.use](EngineCore& core) {
        core.forward().want(use);
        return core.forward().is_settled(use);
      },
      [&](EngineCore& core) {
        PENSTOCK_TRY_ASSIGN(views, core.forward().hold(pass.use));
        const std::vector<uint32_t>& units = options_.request.workload.uses[pass.use].units;
        for (size_t i = 0; i < views.size(); ++i) weights.push_back(weights_of(units[i], views[i]));
        return Status();
      });
  left_ = Clock::now();
  PENSTOCK_TRY(held);
  has_acquired_ = true;
  held_use_ = pass.use;
  pass_stream_ = stream;
  return weights;
}

Status Engine::release_in_forward(const ComputePass& pass) {
  PENSTOCK_TRY(expect_forward(pass, "release"));
  if (!has_acquired_) return Status(Code::kUsage, "release: the pass was not acquired");
  if (pass.use != held_use_) {
    return Status(Code::kUsage, text("release: ", words_of(pass), ": use ", held_use_, " is acquired"));
  }
  PENSTOCK_TRY_ASSIGN(done, end_of_reading());
  thread_->mailbox().post([this, done] { core_->forward().release(done); });
  return Status();
}

Result<Event> Engine::end_of_reading() {
  const bool held = std::exchange(has_acquired_, false);
  return held && core_->device() != nullptr ? core_->device()->device().record(pass_stream_) : Event();
}

}  // namespace penstock::engine
