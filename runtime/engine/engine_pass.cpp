// Engine's passes through uses within a step, and the activations that they leave for backward.
#include <algorithm>
#include <utility>

#include "runtime/engine/engine_waits.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kPutAlignmentBytes = 256;

const char* name_of(Direction direction) { return direction == Direction::forward ? "forward" : "backward"; }

}  // namespace

// A step of fewer micro-batches than planned has the plan's last ones.
void Engine::skip_left_out_computes() {
  const uint32_t left_out = plan_->micro_batches - begin_.micro_batches;
  const std::vector<Compute>& computes = plan_->computes;
  while (next_compute_ < computes.size() && computes[next_compute_].micro_batch < left_out) ++next_compute_;
}

ComputePass Engine::pass_of(const Compute& compute) const {
  return {compute.direction, compute.use, compute.micro_batch - (plan_->micro_batches - begin_.micro_batches)};
}

std::vector<ComputePass> Engine::passes() const {
  std::vector<ComputePass> all;
  const uint32_t left_out = plan_->micro_batches - std::min(plan_->micro_batches, begin_.micro_batches);
  for (const Compute& compute : plan_->computes) {
    if (compute.micro_batch >= left_out) all.push_back(pass_of(compute));
  }
  return all;
}

std::string Engine::words_of(const ComputePass& pass) const {
  const std::vector<Use>& uses = options_.request.workload.uses;
  return text(name_of(pass.direction), " of use ", pass.use < uses.size() ? uses[pass.use].name : text(pass.use),
              ", micro-batch ", pass.micro_batch);
}

Status Engine::expect_pass(const ComputePass& pass, const char* verb) const {
  if (next_compute_ == plan_->computes.size()) {
    return Status(Code::kUsage, text(verb, ": ", words_of(pass), ": the step has no further pass"));
  }
  const ComputePass next = pass_of(plan_->computes[next_compute_]);
  if (next == pass) return Status();
  return Status(Code::kUsage, text(verb, ": ", words_of(pass), ": expected ", words_of(next)),
                "take them in the order of passes(), or plan with the micro-batch group that the trainer has");
}

Result<std::vector<UnitWeights>> Engine::acquire(const ComputePass& pass, Stream stream) {
  std::lock_guard lock(verbs_);
  if (now_ == Now::in_forward) return acquire_in_forward(pass, stream);
  PENSTOCK_TRY(expect(Now::in_step, "acquire"));
  PENSTOCK_TRY(expect_pass(pass, "acquire"));
  if (has_acquired_) return Status(Code::kUsage, "acquire: the pass before has not been released");
  report_.trainer_s += seconds_since(left_);
  const Compute& compute = plan_->computes[next_compute_];
  std::vector<UnitWeights> weights;
  std::vector<Event> before;
  PENSTOCK_TRY(wait_taking_in([&](EngineCore& core) { return core.executor().is_granted(compute.move); },
                              [&](EngineCore& core) {
                                const auto views = core.executor().weights_of(compute);
                                for (size_t i = 0; i < views.size(); ++i) {
                                  weights.push_back(weights_of(compute.weights[i].unit, views[i]));
                                }
                                before = core.executor().events_before(compute.move);
                                pass_activation_ = core.executor().activation_of(compute);
                                return Status();
                              }));
  for (const Event& event : before) PENSTOCK_TRY(device_refused(core_->device()->device().make_wait(stream, event)));
  pass_stream_ = stream;
  if (device_sums_) device_sums_->begin_pass(compute, stream);
  has_acquired_ = true;
  left_ = Clock::now();
  return weights;
}

Status Engine::release(const ComputePass& pass) {
  std::lock_guard lock(verbs_);
  if (now_ == Now::in_forward) return release_in_forward(pass);
  PENSTOCK_TRY(expect(Now::in_step, "release"));
  PENSTOCK_TRY(expect_pass(pass, "release"));
  if (!has_acquired_) return Status(Code::kUsage, "release: the pass was not acquired");
  const bool is_backward = pass.direction == Direction::backward;
  Event done;
  if (device_sums_) {
    if (is_backward) {
      (void)intake_->end_pass(pass.use, pass.micro_batch);
      if (pass.micro_batch + 1 == begin_.micro_batches) device_sums_->round();
      PENSTOCK_TRY(device_refused(device_sums_->status()));
    }
    const Result<Event> event = core_->device()->device().record(pass_stream_);
    PENSTOCK_TRY(device_refused(event.status()));
    done = *event;
  }
  has_acquired_ = false;
  const Compute& compute = plan_->computes[next_compute_];
  thread_->mailbox().post([this, done, move = compute.move] {
    if (core_->executor().is_granted(move)) core_->executor().end_compute(move, done);
  });
  ++next_compute_;
  skip_left_out_computes();
  if (!is_backward) return Status();
  if (device_sums_) {
    if (options_.ranks == nullptr) return Status();
    // What ranks have added up lies where the next unit's sum will: it is taken now, instead of what is downloaded.
    report_.trainer_s += seconds_since(left_);
    const Status taken =
        wait_taking_in([&](EngineCore& core) { return core.executor().has_ended_downloads_of(compute); },
                       [](EngineCore&) { return Status(); });
    left_ = Clock::now();
    return taken;
  }
  return as_intake([&] {
    const std::vector<uint32_t> complete = intake_->end_pass(pass.use, pass.micro_batch);
    completed_.insert(completed_.end(), complete.begin(), complete.end());
    return hand_over_completed();
  });
}

void Engine::when_weights(const ComputePass& pass, ThenWeights then) {
  std::lock_guard lock(verbs_);
  const auto compute = std::find_if(plan_->computes.begin(), plan_->computes.end(),
                                    [&](const Compute& each) { return pass_of(each) == pass; });
  CHECK(compute != plan_->computes.end(), words_of(pass), ": the plan has no such pass");
  thread_->mailbox().post([this, of = &*compute, then = std::move(then)]() mutable {
    Executor& executor = core_->executor();
    executor.when([of, &executor] { return executor.is_abandoned() || executor.has_weights_of(*of); },
                  [this, of, &executor, then = std::move(then)](Status status) {
                    if (status.ok() && executor.is_abandoned()) {
                      status = Status(Code::kInterrupted, text(words_of(pass_of(*of)), ": the step was given up"));
                    }
                    std::vector<UnitWeights> weights;
                    if (status.ok()) {
                      const auto views = executor.weights_before(*of);
                      for (size_t i = 0; i < views.size(); ++i) {
                        weights.push_back(weights_of(of->weights[i].unit, views[i]));
                      }
                    }
                    then(status, std::move(weights));
                  });
  });
}

UnitWeights Engine::weights_of(uint32_t unit, std::span<std::byte> bytes) const {
  const Workload& workload = options_.request.workload;
  const uint64_t elements = workload.units[unit].elements;
  return {unit, elements, bytes.first(elements * bytes_of(workload.form.weight))};
}

Status Engine::expect_held(const ComputePass& pass, Direction direction, const char* verb) const {
  if (has_acquired_ && pass.direction == direction && pass == pass_of(plan_->computes[next_compute_])) return Status();
  return Status(Code::kUsage,
                text(verb, ": ", words_of(pass), " is not acquired, or not a ", name_of(direction), " pass"),
                text("call it between acquire() and release() of a ", name_of(direction), " pass"));
}

Result<std::span<std::byte>> Engine::put(const ComputePass& pass, uint64_t bytes) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "put"));
  PENSTOCK_TRY(expect_held(pass, Direction::forward, "put"));
  std::vector<MemoryRun>& runs = put_[{pass.use, pass.micro_batch}];
  const uint64_t begin = runs.empty() ? 0 : round_up(runs.back().offset_bytes + runs.back().bytes, kPutAlignmentBytes);
  const uint64_t room = pass_activation_.size();
  if (begin > room || bytes > room - begin) {
    return Status(Code::kDoesNotFit,
                  text("put: ", words_of(pass), ": ", bytes, " B do not fit behind the ", begin,
                       " B already there: the plan has room for ", room, " B"),
                  plan_->stores_activations ? "give the use's activation_bytes, or boundary_bytes if it is recomputed"
                                            : "plan with stores_activations");
  }
  runs.push_back({begin, bytes});
  return pass_activation_.subspan(begin, bytes);
}

Result<std::span<std::byte>> Engine::get(const ComputePass& pass, size_t number) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "get"));
  PENSTOCK_TRY(expect_held(pass, Direction::backward, "get"));
  const std::vector<MemoryRun>& runs = put_[{pass.use, pass.micro_batch}];
  if (number >= runs.size()) {
    return Status(Code::kUsage, text("get: ", words_of(pass), ": number ", number, ": ", runs.size(), " were put"));
  }
  return pass_activation_.subspan(runs[number].offset_bytes, runs[number].bytes);
}

Status Engine::device_refused(const Status& status) {
  if (status.ok()) return status;
  now_ = Now::between_steps;
  return thread_->ask([&] {
    core_->executor().fail(status);
    return core_->executor().status();
  });
}

}  // namespace penstock::engine
