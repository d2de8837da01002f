// OverlapCourse: steps of one rank in which what is to run beside the trainer is waited for while a pass is held, and
// what is to wait for nobody is held back until a later pass is: of an engine that does neither, the course fails.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "runtime/engine/ranks/ranked_engine.h"
#include "tests/support/engine_world.h"
#include "tests/support/passing_ranks.h"
#include "tiering/plan/visits.h"

namespace penstock::engine {

// The collective for passes: counts gathers, and begins no reduction before the pass behind it is held.
class WatchedCollective final : public test::PassingCollective {
 public:
  using PassingCollective::PassingCollective;

  void gather(std::span<const Shard> shards, Then then) override {
    {
      std::lock_guard lock(mutex_);
      for (const Shard& shard : shards) {
        const bool is_held = shard.offset_bytes < held_.offset_bytes + held_.bytes &&
                             held_.offset_bytes < shard.offset_bytes + shard.bytes;
        writes_what_is_held_ = writes_what_is_held_ || is_held;
        if (shard.rank != rank()) gathered_bytes_ += shard.bytes;
      }
      ++gathers_;
      changed_.notify_all();
    }
    PassingCollective::gather(shards, std::move(then));
  }
  void reduce(const Reduction& reduction, Then then) override {
    const Reduction::Part mine = reduction.parts[rank()];
    wait_for_reduction((mine.end - mine.begin) * bytes_of(reduction.dtype));
    PassingCollective::reduce(reduction, std::move(then));
  }
  void collect(const Collection& collection, Then then) override {
    const Collection::Part mine = collection.parts[rank()];
    wait_for_reduction(mine.end - mine.begin);
    PassingCollective::collect(collection, std::move(then));
  }

  // By reduction: how many passes of the step are held before it may begin. One more counts behind the last.
  void begin_step(std::vector<uint64_t> reductions_begin_at) {
    std::lock_guard lock(mutex_);
    passes_held_ = 0;
    reductions_begin_at_.assign(reductions_begin_at.begin(), reductions_begin_at.end());
  }
  // The trainer holds a pass, whose weights are there.
  void hold(MemoryRun weights) {
    std::lock_guard lock(mutex_);
    held_ = weights;
    ++passes_held_;
    changed_.notify_all();
  }
  void release() {
    std::lock_guard lock(mutex_);
    held_ = {};
  }
  uint64_t gathers() {
    std::lock_guard lock(mutex_);
    return gathers_;
  }
  // From the other ranks.
  uint64_t gathered_bytes() {
    std::lock_guard lock(mutex_);
    return gathered_bytes_;
  }
  uint64_t reduced_bytes() {
    std::lock_guard lock(mutex_);
    return reduced_bytes_;
  }
  bool comes_to(uint64_t gathers) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return gathers_ >= gathers; });
  }
  Status verdict() {
    std::lock_guard lock(mutex_);
    if (waits_for_reduction_) return Status(Code::kComparison, "a reduction was waited for before the next pass");
    if (writes_what_is_held_) return Status(Code::kComparison, "weights are gathered over those that are held");
    return Status();
  }

 private:
  static constexpr std::chrono::seconds kPatience{30};

  // `bytes`: from each of the other ranks.
  void wait_for_reduction(uint64_t bytes) {
    std::unique_lock lock(mutex_);
    CHECK(!reductions_begin_at_.empty(), "a reduction that the step does not have");
    const uint64_t held = reductions_begin_at_.front();
    reductions_begin_at_.pop_front();
    const bool goes_on =
        waits_for_reduction_ || changed_.wait_for(lock, kPatience, [&] { return passes_held_ >= held; });
    waits_for_reduction_ = waits_for_reduction_ || !goes_on;
    reduced_bytes_ += bytes * (ranks() - 1);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t gathers_ = 0, passes_held_ = 0, gathered_bytes_ = 0, reduced_bytes_ = 0;
  std::deque<uint64_t> reductions_begin_at_;
  MemoryRun held_;
  bool waits_for_reduction_ = false, writes_what_is_held_ = false;
};

class WatchedRanks final : public test::PassingRanks {
 public:
  explicit WatchedRanks(Ranks& inner) : PassingRanks(inner), passes_(inner.passes()) {}
  WatchedCollective& passes() override { return passes_; }

 private:
  WatchedCollective passes_;
};

class OverlapCourse {
 public:
  OverlapCourse(const RankPlace& place, uint32_t group_ranks, RankCodes codes = {}) : place_(place) {
    Workload& workload = world_.options.request.workload;
    workload.scope = StepScope::training;
    workload.micro_batches = 2;
    workload.codes = codes;
    workload.uses = uses_in_turn(workload.units);
    for (Use& use : workload.uses) use.forward_s = use.backward_s = 1e-3;
    world_.options.request.stores_activations = false;
    world_.options.request.choices.micro_batch_group = 2;
    world_.options.request.choices.weights = WeightTier::nvme;
    options_ = {.engine = world_.options, .group_ranks = group_ranks};
  }

  uint64_t memory_bytes() const { return RankedEngine::memory_of(options_, place_.ranks).shared_bytes(); }

  Status run(Ranks& met, uint64_t steps) {
    WatchedRanks ranks(met);
    const auto zeros = [](uint32_t, uint64_t, std::span<float> values) {
      std::fill(values.begin(), values.end(), 0.0f);
      return Status();
    };
    PENSTOCK_TRY(RankedEngine::create(options_, ranks, zeros));
    PENSTOCK_TRY_ASSIGN(engine, RankedEngine::open(options_, ranks));
    while (engine->steps_done() < steps) PENSTOCK_TRY(step(*engine, ranks.passes()));
    PENSTOCK_TRY(engine->settle());
    return ranks.passes().verdict();
  }

 private:
  Status step(RankedEngine& engine, WatchedCollective& watched) {
    const std::vector<Unit>& units = world_.options.request.workload.units;
    const bool gathers = options_.group_ranks != 1;
    const uint64_t before = watched.gathers(), gathered = watched.gathered_bytes(), reduced = watched.reduced_bytes();
    const std::vector<uint32_t> visits = visits_of(engine.plan());
    PENSTOCK_TRY(engine.begin({.groups = world_.groups, .micro_batches = 2}));
    const std::vector<ComputePass> passes = engine.passes();
    std::vector<uint64_t> reductions_begin_at;
    for (size_t i = 0; i < passes.size(); ++i) {
      // All micro-batches have come back through the unit.
      const bool completes = passes[i].direction == Direction::backward && passes[i].micro_batch == 1;
      if (completes) reductions_begin_at.push_back(i + 2);
    }
    watched.begin_step(std::move(reductions_begin_at));
    for (size_t i = 0; i < passes.size(); ++i) {
      const ComputePass& pass = passes[i];
      PENSTOCK_TRY_ASSIGN(weights, engine.acquire(pass));
      const auto begin = static_cast<uint64_t>(weights.front().bytes.data() - watched.memory().data());
      watched.hold({begin, gathers ? weights.front().bytes.size() : 0});
      // This visit's and the next one's.
      const uint64_t expected = before + std::min(visits[i] + 2, visits.back() + 1);
      if (gathers && !watched.comes_to(expected)) {
        return Status(Code::kComparison, text("pass ", i, ": ", watched.gathers() - before, " gathers, expected ",
                                              expected - before, " before it is released"));
      }
      if (pass.direction == Direction::backward) {
        const std::vector<float> ones(units[pass.use].elements, 1.0f);
        PENSTOCK_TRY(engine.gradient({.unit = pass.use, .micro_batch = pass.micro_batch}, Dtype::fp32,
                                     std::as_bytes(std::span(ones))));
      }
      watched.release();
      PENSTOCK_TRY(engine.release(pass));
    }
    watched.hold({});
    const Result<StepReport> report = engine.step();
    PENSTOCK_TRY(report.status());
    const Plan forecast = engine.forecast();
    PENSTOCK_TRY(validate(forecast));
    uint64_t of_weights = watched.gathered_bytes() - gathered, of_gradients = watched.reduced_bytes() - reduced;
    // Those who have the same shard give one another what they have added up.
    if (!gathers) of_gradients += std::exchange(of_weights, 0);
    PENSTOCK_TRY(
        expect_near("gathered", of_weights, report->gathered_bytes, collective_bytes(forecast, MoveKind::gather)));
    PENSTOCK_TRY(
        expect_near("reduced", of_gradients, report->reduced_bytes, collective_bytes(forecast, MoveKind::reduce)));
    const auto lane = static_cast<size_t>(Lane::collective);
    if (report->busy_s[lane] > 0 && engine.predicted_step_s() > 0) return Status();
    return Status(Code::kComparison, "the lane of collectives is not in the report, or the step is not predicted");
  }

  // Counted in the collective, reported and planned, in bytes: within 1 %.
  static Status expect_near(const char* what, uint64_t counted, uint64_t reported, uint64_t planned) {
    auto is_near = [&](uint64_t bytes) { return 100 * std::max(bytes, counted) <= 101 * std::min(bytes, counted); };
    if (is_near(reported) && is_near(planned)) return Status();
    return Status(Code::kComparison,
                  text(counted, " B are ", what, ", ", reported, " B reported, ", planned, " B planned"));
  }

  const RankPlace place_;
  // Shards of one size, so that the plan has room for three after one another.
  EngineWorld world_{1, 2, std::vector<uint64_t>(6, 6 * kBlockElements - 100)};
  RankedOptions options_;
};

}  // namespace penstock::engine
