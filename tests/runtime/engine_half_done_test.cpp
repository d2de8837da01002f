// A verb that fails between two of its requests, at each of them in turn: the failure is every later verb's answer, no
// later step makes half of it durable, and opening the store again goes on from a state that the verb left whole.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>

#include "tests/support/engine_world.h"
#include "tests/support/scripted_backend.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

struct Rest {
  const char* name;
  double host_state_share;
  WeightTier weights;
  Durability durability;

  friend std::ostream& operator<<(std::ostream& out, const Rest& rest) { return out << rest.name; }
};

class EngineHalfDone : public testing::TestWithParam<Rest> {
 protected:
  static constexpr uint64_t kFirst = 60'000, kCount = 9'000;  // of unit 0, over the border of its two tiles

  // A store after one step, and what a write to it would leave.
  EngineHalfDone() : world_(31, 2, {70'000, 3'000}) {
    PlanRequest& request = world_.options.request;
    request.choices.host_state_share = GetParam().host_state_share;
    request.choices.weights = GetParam().weights;
    request.durability = GetParam().durability;
    world_.options.request.workload.clipping.norm = world_.settings.clip = 5;
    world_.make_backend_ = [this] {
      return std::make_unique<aio::ScriptedBackend>(std::make_unique<aio::MemoryBackend>(), [this](const aio::Piece&) {
        return until_failure_ > 0 && --until_failure_ == 0 ? EIO : aio::ScriptedBackend::kPass;
      });
    };
    CHECK(world_.create().ok());
    std::unique_ptr<Engine> engine = open();
    CHECK(world_.step(*engine, 0.001f).ok() && engine->settle().ok());
    engine.reset();
    world_.plain_step(1, 0.001f);
    for (uint32_t drive = 0; drive < world_.drives(); ++drive) image_.push_back(world_.folder(drive).bytes(kFile));
    after_step_.assign(2, world_.plain());
    written_ = world_.plain();
    for (uint64_t i = 0; i < kCount; ++i) {
      written_.units[0].m[kFirst + i] = momentum_.emplace_back(static_cast<float>(i % 31) * 1e-4f);
    }
  }

  std::unique_ptr<Engine> open() {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    CHECK(engine.ok(), engine.status().message());
    return std::move(*engine);
  }

  Status write(Engine& engine) { return engine.write(0, Role::momentum, kFirst, std::as_bytes(std::span(momentum_))); }

  Status step(Engine& engine, float size) {
    const uint64_t number = engine.steps_done() + 1;
    PENSTOCK_TRY(world_.step(engine, size).status());
    world_.plain_step(number, size);
    return Status();
  }

  // Runs `act`, a verb, once for each of its requests, which fails. Then the store is after one of the steps so far, or
  // holds what was written.
  template <typename Prepare, typename Act>
  void fail_everywhere(Prepare prepare, Act act) {
    Watchdog watchdog(std::chrono::seconds(300), "a verb on failing drives");
    int64_t failures = 0;
    for (int64_t request = 1;; ++request) {
      SCOPED_TRACE(testing::Message() << "request " << request);
      for (uint32_t drive = 0; drive < world_.drives(); ++drive) world_.folder(drive).put(kFile, image_[drive]);
      world_.plain() = after_step_[1];
      std::unique_ptr<Engine> engine = open();
      prepare(*engine);
      until_failure_ = request;
      Status status = act(*engine);
      if (until_failure_.exchange(0) > 0) break;
      ++failures;
      ASSERT_FALSE(status.ok());
      ASSERT_NE(status.message().find("EIO"), std::string::npos) << status.message();
      ASSERT_EQ(world_.step(*engine, 0.001f).status().message(), status.message());
      EXPECT_EQ(engine->settle().message(), status.message());
      engine = open();
      ASSERT_LT(engine->steps_done(), after_step_.size());
      const bool as_it_was = world_.words_different(*engine, after_step_[engine->steps_done()]) == 0;
      const bool as_written = engine->steps_done() == 1 && world_.words_different(*engine, written_) == 0;
      ASSERT_TRUE(as_it_was || as_written) << "step " << engine->steps_done() << " and half of what was asked for";
      world_.plain() = as_it_was ? after_step_[engine->steps_done()] : written_;
      for (float size : {0.002f, 0.05f}) ASSERT_TRUE(step(*engine, size).ok());
      ASSERT_EQ(world_.words_different(*engine), 0u);
    }
    EXPECT_GT(failures, 0);
  }

  inline static const std::string kFile = aio::store_file_name(0);
  std::atomic<int64_t> until_failure_ = 0;  // requests; 0: none fails
  EngineWorld world_;
  std::vector<aio::MemoryFile::Bytes> image_;
  std::vector<PlainModel> after_step_;
  PlainModel written_;  // after step 1
  std::vector<float> momentum_;
};

TEST_P(EngineHalfDone, AWriteIsDoneWhollyOrNotAtAll) {
  fail_everywhere([](Engine&) {}, [this](Engine& engine) { return write(engine); });
}

TEST_P(EngineHalfDone, AFailureInsideAStepIsEveryLaterVerbsAnswer) {
  std::unique_ptr<Engine> engine = open();
  until_failure_ = 3;
  const std::string why = world_.step(*engine, 0.001f).status().message();
  const std::string settled = engine->settle().message();
  ASSERT_NE(settled.find("EIO"), std::string::npos) << why;
  EXPECT_TRUE(why.empty() || why == settled) << why;
  const std::vector<uint16_t> gradient(3'000);
  std::vector<std::byte> values(8);
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(engine->begin({.groups = world_.groups}).message(), settled);
    EXPECT_EQ(engine->gradient(1, 0, Dtype::bf16, std::as_bytes(std::span(gradient))).message(), settled);
    EXPECT_EQ(engine->absent_gradient(1, Absent::skip).message(), settled);
    EXPECT_EQ(engine->step().status().message(), settled);
    EXPECT_EQ(engine->read(0, Role::momentum, 0, values).message(), settled);
    EXPECT_EQ(write(*engine).message(), settled);
    EXPECT_EQ(engine->discard().message(), settled);
  }
}

// Where the step that was done is not durable yet.
class EngineHalfSettled : public EngineHalfDone {};

TEST_P(EngineHalfSettled, AFailureIsTheEnd) {
  for (float size : {0.05f, 0.002f}) {
    world_.plain_step(after_step_.size(), size);
    after_step_.push_back(world_.plain());
  }
  auto two_steps = [this](Engine& engine) {
    for (float size : {0.05f, 0.002f}) CHECK(step(engine, size).ok());
  };
  fail_everywhere(two_steps, [](Engine& engine) { return engine.settle(); });
}

// Where weights in host memory come back from the drives.
class EngineHalfDiscarded : public EngineHalfDone {};

TEST_P(EngineHalfDiscarded, AFailureIsTheEnd) {
  auto begin_step = [this](Engine& engine) {
    CHECK(engine.begin({.groups = world_.groups}).ok());
    const std::vector<uint16_t> gradient(3'000, 0x3c00);
    CHECK(engine.gradient(1, 0, Dtype::bf16, std::as_bytes(std::span(gradient))).ok());
  };
  fail_everywhere(begin_step, [](Engine& engine) { return engine.discard(); });
}

constexpr Rest kDrives{"Drives", 0, WeightTier::nvme, {}};
constexpr Rest kWeightsInHost{"WeightsInHost", 0, WeightTier::host, {}};
constexpr Rest kHalfInHost{"HalfInHostEverySecondStep", 0.5, WeightTier::automatic, {Durability::Kind::every, 2}};

std::string name_of(const testing::TestParamInfo<Rest>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Rests, EngineHalfDone, testing::Values(kDrives, kWeightsInHost, kHalfInHost), name_of);
INSTANTIATE_TEST_SUITE_P(Rests, EngineHalfSettled, testing::Values(kHalfInHost), name_of);
INSTANTIATE_TEST_SUITE_P(Rests, EngineHalfDiscarded, testing::Values(kWeightsInHost), name_of);

}  // namespace
}  // namespace penstock::engine
