// StepEngine is an engine as the training loop drives it: one that is alone, or one rank's of several.
//
// With several, all ranks call the same verbs in the same order; see RankedEngine.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/ranks/ranked_engine.h"

namespace penstock::trainer {

class StepEngine {
 public:
  virtual ~StepEngine() = default;

  virtual uint64_t steps_done() const = 0;
  virtual uint64_t updates_done() const = 0;
  virtual const std::string& restored_state() const = 0;
  // Of this rank's shards.
  virtual const Plan& plan() const = 0;
  virtual double predicted_step_s() const = 0;
  virtual std::string description() const = 0;
  virtual std::vector<std::string> remarks() const = 0;
  virtual engine::Moved moved() const = 0;

  virtual Status begin(const engine::StepBegin& begin) = 0;
  virtual std::vector<engine::ComputePass> passes() const = 0;
  virtual Result<std::vector<engine::UnitWeights>> acquire(const engine::ComputePass& pass) = 0;
  virtual Status release(const engine::ComputePass& pass) = 0;
  virtual Result<std::span<std::byte>> put(const engine::ComputePass& pass, uint64_t bytes) = 0;
  virtual Result<std::span<std::byte>> get(const engine::ComputePass& pass, size_t number) = 0;
  virtual Status gradient(const engine::GradientPart& part, Dtype dtype, std::span<const std::byte> values) = 0;
  virtual Result<engine::StepReport> step(std::string trainer_state) = 0;
  // The trainer cannot end what it has begun: alone, the step is discarded; of several ranks, all end. What to answer.
  virtual Status give_up(const Status& why) = 0;
  virtual Status begin_forward() = 0;
  virtual Status end_forward() = 0;
  virtual Status settle() = 0;
  // Of one that is alone; of several ranks nobody asks.
  virtual std::vector<aio::TileStore::FileRun> runs_of_durable_step() const = 0;
  virtual Status read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) = 0;
  // `all` gets every rank's numbers, in the order of ranks.
  virtual Status exchange(std::span<const uint64_t> mine, std::span<uint64_t> all) = 0;
};

std::unique_ptr<StepEngine> step_engine(std::shared_ptr<engine::Engine> engine);
std::unique_ptr<StepEngine> step_engine(std::shared_ptr<engine::RankedEngine> engine);

}  // namespace penstock::trainer
