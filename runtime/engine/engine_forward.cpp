// Engine's verbs for passes between steps, which change nothing.
#include <utility>

#include "runtime/engine/engine_waits.h"

namespace penstock::engine {

Status Engine::begin_forward() {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::between_steps, "begin_forward"));
  if (options_.request.workload.pass != Pass::training) {
    return Status(Code::kUsage, "begin_forward: the plan has no passes through the model, only updates",
                  "plan with Pass::training and the model's uses");
  }
  PENSTOCK_TRY(when_idle([](EngineCore& core) {
    core.begin_forward();
    return Status();
  }));
  now_ = Now::in_forward;
  has_acquired_ = false;
  return Status();
}

Status Engine::end_forward() {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_forward, "end_forward"));
  PENSTOCK_TRY_ASSIGN(done, end_of_reading());
  now_ = Now::between_steps;
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
  return Status(Code::kUsage, text(verb, ": ", words_of(pass), ": between steps there are forward passes only"));
}

Result<std::vector<UnitWeights>> Engine::acquire_in_forward(const ComputePass& pass, Stream stream) {
  PENSTOCK_TRY(expect_forward(pass, "acquire"));
  if (has_acquired_) return Status(Code::kUsage, "acquire: the pass before has not been released");
  std::vector<UnitWeights> weights;
  PENSTOCK_TRY(wait_for(
      [use = pass.use](EngineCore& core) {
        core.forward().want(use);
        return core.forward().is_settled(use);
      },
      [&](EngineCore& core) {
        PENSTOCK_TRY_ASSIGN(views, core.forward().hold(pass.use));
        const std::vector<uint32_t>& units = options_.request.workload.uses[pass.use].units;
        for (size_t i = 0; i < views.size(); ++i) weights.push_back(weights_of(units[i], views[i]));
        return Status();
      }));
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
