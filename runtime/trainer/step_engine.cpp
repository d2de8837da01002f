#include "runtime/trainer/step_engine.h"

#include <algorithm>

namespace penstock::trainer {
namespace {

template <typename AnyEngine>
class StepEngineOver final : public StepEngine {
 public:
  explicit StepEngineOver(std::shared_ptr<AnyEngine> engine) : engine_(std::move(engine)) {}

  uint64_t steps_done() const override { return engine_->steps_done(); }
  uint64_t updates_done() const override { return engine_->updates_done(); }
  const std::string& restored_state() const override { return engine_->restored_state(); }
  const Plan& plan() const override { return engine_->plan(); }
  double predicted_step_s() const override { return engine_->predicted_step_s(); }
  std::string description() const override { return engine_->description(); }
  std::vector<std::string> remarks() const override { return engine_->remarks(); }
  engine::Moved moved() const override { return engine_->moved(); }

  Status begin(const engine::StepBegin& begin) override { return engine_->begin(begin); }
  std::vector<engine::ComputePass> passes() const override { return engine_->passes(); }
  Result<std::vector<engine::UnitWeights>> acquire(const engine::ComputePass& pass) override {
    return engine_->acquire(pass);
  }
  Status release(const engine::ComputePass& pass) override { return engine_->release(pass); }
  Result<std::span<std::byte>> put(const engine::ComputePass& pass, uint64_t bytes) override {
    return engine_->put(pass, bytes);
  }
  Result<std::span<std::byte>> get(const engine::ComputePass& pass, size_t number) override {
    return engine_->get(pass, number);
  }
  Status gradient(const engine::GradientPart& part, Dtype dtype, std::span<const std::byte> values) override {
    return engine_->gradient(part, dtype, values);
  }
  Result<engine::StepReport> step(std::string trainer_state) override {
    return engine_->step(std::move(trainer_state));
  }
  Status give_up(const Status& why) override {
    if constexpr (kIsRanked) return engine_->fail(why);
    (void)engine_->discard();  // what it says, the engine's status says too
    return why;
  }
  Status begin_forward() override { return engine_->begin_forward(); }
  Status end_forward() override { return engine_->end_forward(); }
  Status settle() override { return engine_->settle(); }
  std::vector<aio::TileStore::FileRun> runs_of_durable_step() const override {
    if constexpr (kIsRanked) {
      CHECK(false, "steps of several ranks are not kept");
      return {};
    } else {
      return engine_->runs_of_durable_step();
    }
  }
  Status read(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) override {
    return engine_->read(unit, role, first, values);
  }
  Status exchange(std::span<const uint64_t> mine, std::span<uint64_t> all) override {
    if constexpr (kIsRanked) return engine_->exchange(mine, all);
    std::copy(mine.begin(), mine.end(), all.begin());
    return Status();
  }

 private:
  static constexpr bool kIsRanked = std::is_same_v<AnyEngine, engine::RankedEngine>;

  const std::shared_ptr<AnyEngine> engine_;
};

}  // namespace

std::unique_ptr<StepEngine> step_engine(std::shared_ptr<engine::Engine> engine) {
  return std::make_unique<StepEngineOver<engine::Engine>>(std::move(engine));
}
std::unique_ptr<StepEngine> step_engine(std::shared_ptr<engine::RankedEngine> engine) {
  return std::make_unique<StepEngineOver<engine::RankedEngine>>(std::move(engine));
}

}  // namespace penstock::trainer
