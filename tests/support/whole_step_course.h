// Courses of whole training steps: a model, budgets, and what happens in each step, drawn by a seed; in place or on a
// device. They leave the bits of a plain loop.
#pragma once

#include <random>

#include "tests/support/capricious_device.h"
#include "tests/support/course_device.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/instrumented.h"

namespace penstock::engine {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Draws one model, budget and course of training.
class Course {
 public:
  explicit Course(uint64_t seed, const CourseDevice* device = nullptr)
      : random_(seed), world_(seed, 1 + static_cast<uint32_t>(up_to(1)), {70'000, 65'536, 131'073, 40'000, 20'000}) {
    PlanRequest& request = world_.options.request;
    request.workload.micro_batches = 1 + static_cast<uint32_t>(up_to(3));
    std::vector<std::vector<uint32_t>> uses = {{0}, {1}, {2}, {3}, {4}};
    for (uint64_t again = up_to(2); again > 0; --again) uses.insert(uses.begin() + 2, std::vector<uint32_t>{1});
    if (up_to(1)) uses.back().push_back(0);  // tied
    world_.set_uses(uses);
    for (size_t use = 0; use < uses.size(); ++use) request.workload.uses[use].gradients_stay = (seed + use) % 2 == 0;
    const std::optional<BlockCode> codes[] = {BlockCode::nf4, std::nullopt, BlockCode::int8};
    if (up_to(2) == 0) world_.freeze(3, codes[seed % 3]);
    if (seed % 4 == 0) world_.freeze(1, seed % 8 == 0 ? BlockCode::nf4 : BlockCode::int8);  // used several times, maybe
    request.choices.micro_batch_group = 1 + static_cast<uint32_t>(up_to(request.workload.micro_batches - 1));
    manner_.puts = request.stores_activations = up_to(3) != 0;
    request.choices.activations = static_cast<ActivationChoice>(up_to(manner_.puts ? 3 : 1));
    if (up_to(3) == 0) request.choices.keep_share = static_cast<double>(up_to(2)) / 2;
    if (up_to(3) != 0) request.choices.offload_host_share = static_cast<double>(up_to(2)) / 2;
    request.choices.weights = static_cast<WeightTier>(up_to(2));
    if (up_to(1)) request.choices.host_state_share = static_cast<double>(up_to(2)) / 2;
    if (up_to(1)) request.choices.retained_host_share = static_cast<double>(up_to(2)) / 2;
    if (up_to(1)) request.choices.window_tiles = (seed % 3 == 0 ? 20 : 3) + static_cast<uint32_t>(up_to(3));
    request.durability = Durability{static_cast<Durability::Kind>(up_to(2)), 2};
    Clipping& clipping = request.workload.clipping;
    const double norms[] = {0, 1e-4, 1e3};
    clipping.norm = world_.settings.clip = norms[up_to(2)];
    clipping.skips_overflow = world_.settings.skip_overflow = up_to(1);
    const double scales[] = {1, 1024, 0.25};
    world_.settings.loss_scale = scales[up_to(2)];
    manner_.by_parameter = up_to(1);
    manner_.leaves_zeros = up_to(1);
    request.choices.ahead_window_tiles = seed % 3 * 4;
    // Tiles of one block, two and three.
    request.choices.tile_elements = kBlockElements * (1 + seed / 3 % 3);
    if (seed % 2 == 1) request.choices.deferred_share = static_cast<double>(1 + seed / 2 % 4) / 4;
    if (seed % 5 < 3) leave_out_gradients(seed);
    request.forward_in_steps = seed % 3 == 1;
    evaluations_.seed(seed);
    if (device != nullptr) compute_on(*device, seed, 1 + static_cast<uint32_t>(up_to(1)), world_, streams_);
    // None, half and all of the units that may rest there.
    if (device != nullptr && seed % 3 != 0) request.choices.device_share = static_cast<double>(seed % 3) / 2;
  }

  // Every lane takes its time, each move another: drives, updates (where nothing may take them back), the trainer's
  // computing and its calls; a device's copies and streams do anyway.
  void delay_all_lanes(uint64_t seed) {
    delays_ = std::make_unique<test::Delays>(seed);
    world_.make_backend_ = [seed] {
      aio::FaultOptions slow{.seed = seed};
      slow.delay_chance = 0.3;
      slow.delay_rounds_max = 64;
      return std::make_unique<aio::FaultyBackend>(std::make_unique<aio::MemoryBackend>(), slow);
    };
    auto pause = [this] { std::this_thread::sleep_for(delays_->draw()); };
    const PlanRequest& request = world_.options.request;
    if (!request.workload.clipping.may_take_back() && !request.choices.device_share) {
      world_.options.on_updated = [pause](uint32_t, uint64_t, std::span<const std::byte>) { pause(); };
    }
    world_.computing.put = [pause, put = world_.computing.put](std::function<void()> work) {
      pause();
      put(std::move(work));
    };
    manner_.before_pass = [pause](const ComputePass&) {
      pause();
      return Status();
    };
  }

  // The engine takes another plan before about every second step. On a device, where arenas stay as they are, the
  // first has large ones.
  void change_plans(uint64_t seed) {
    plans_.emplace(seed);
    if (streams_.empty()) return;
    PlanRequest& request = world_.options.request;
    request.workload.micro_batches = 4;
    PlanChoices& choices = request.choices;
    choices.window_tiles.reset();
    choices.keep_share.reset();
    choices.offload_host_share.reset();
    choices.host_state_share = choices.retained_host_share = 1;
    choices.weights = WeightTier::host;
    choices.micro_batch_group = 4;
    choices.activations = ActivationChoice::keep;
    request.forward_in_steps = true;
    choices.device_share = 1;
    choices.deferred_share = 1;
  }

  void run(uint64_t steps) {
    ASSERT_TRUE(world_.create().ok());
    open();
    if (testing::Test::HasFatalFailure()) return;
    for (const Unit& unit : world_.options.request.workload.units) in_codes += unit.code.has_value();
    for (const Placement& placement : engine_->plan().placements) {
      resting_there += placement.weight_on_device();
      updated_there += placement.state_on_device();
    }
    for (const Move& move : engine_->plan().moves) {
      offloaded += move.kind == MoveKind::download_activation;
      spilled += move.kind == MoveKind::spill_activation;
    }
    for (uint64_t step = 1; step <= steps; ++step) {
      if (plans_ && (*plans_)() % 2 == 0) take_new_plan();
      if (testing::Test::HasFatalFailure()) return;
      const uint32_t planned = world_.options.request.workload.micro_batches;
      world_.overflowing_unit.reset();
      if (up_to(3) == 0) discard_within(1 + static_cast<uint32_t>(up_to(planned - 1)));
      const bool skips = world_.options.request.workload.clipping.skips_overflow && up_to(4) == 0;
      // Some are known to overflow with the first gradients, some only with the last, when much has been updated.
      world_.overflowing_unit.reset();
      const bool may_be_late =
          world_.options.request.workload.units[0].parameters.size() != 1;  // that has none in use 0
      const bool late = skips && may_be_late && up_to(1);
      if (late) world_.overflowing_unit = 0;
      const float usual = up_to(1) ? 1e-3f : 2.0f;
      const float size = (skips && !late ? kNan : usual) * static_cast<float>(world_.settings.loss_scale);
      const uint32_t count = 1 + static_cast<uint32_t>(up_to(planned - 1));
      TrainingWorld::Manner manner = manner_;
      if (world_.options.request.forward_in_steps) {
        manner.before_pass = [this, before = manner_.before_pass](const ComputePass& pass) {
          if (evaluations_() % 4 == 0) evaluate_before(pass);
          return before(pass);
        };
      }
      Result<StepReport> report = world_.train(*engine_, count, size, manner);
      ASSERT_TRUE(report.ok()) << report.status().message();
      const uint64_t updates = world_.plain().updates;
      world_.plain_train(engine_->steps_done(), count, size);
      struck += report->verdict == Verdict::strike;
      skipped += report->verdict == Verdict::skip;
      // What was to overflow may have no gradient in this step.
      ASSERT_EQ(report->verdict == Verdict::skip, world_.plain().updates == updates);
      if (up_to(1)) evaluate();
      if (up_to(3) == 0) reopen();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(world_.words_different(*engine_), 0u);
    EXPECT_EQ(world_.activation_bytes_different, 0u);
  }

  std::string words() const {
    const PlanRequest& request = world_.options.request;
    const PlanChoices& choices = request.choices;
    return text(
        "tiles of ", *choices.tile_elements, ", ", !streams_.empty() ? "on a device, " : "",
        streams_.size() > 1 ? "gradients from another stream, " : "", request.workload.uses.size(),
        " uses, the last of ", request.workload.uses.back().units.size(), " units, ", request.workload.micro_batches,
        " micro-batches in groups of ", *choices.micro_batch_group, ", weights ", static_cast<int>(choices.weights),
        ", state in host ", choices.host_state_share.value_or(-1), ", retained ",
        choices.retained_host_share.value_or(-1), ", deferred ", choices.deferred_share.value_or(0), ", on the device ",
        choices.device_share.value_or(0), ", durable ", text_of(*request.durability), ", clip ",
        request.workload.clipping.norm, request.workload.clipping.skips_overflow ? ", skipping" : "",
        manner_.puts ? ", activations put: " : ", activations ", static_cast<int>(*choices.activations), " but for ",
        choices.keep_share.value_or(0), ", offloaded to host ", choices.offload_host_share.value_or(-1),
        manner_.by_parameter ? ", gradients by parameter" : "", manner_.leaves_zeros ? ", zeros left out" : "",
        leaves_out_ ? ", absent gradients" : "", frozen_words(1), frozen_words(3),
        request.workload.uses[0].gradients_stay ? ", gradients stay in even uses" : ", in odd ones",
        request.forward_in_steps ? ", evaluation within steps" : "");
  }

  int struck = 0, skipped = 0, discarded = 0;
  int offloaded = 0, spilled = 0;            // activations, by the plan
  int in_codes = 0;                          // units
  int resting_there = 0, updated_there = 0;  // tiles, on the device
  int evaluated = 0;                         // within steps
  int new_plans = 0, refused_plans = 0;
  uint64_t absences() const { return world_.absences; }

 private:
  // Some units have no gradient in some steps; and some parameters, where they come one by one: of those one in odd
  // steps.
  void leave_out_gradients(uint64_t seed) {
    leaves_out_ = true;
    auto luck = [seed](uint64_t step, uint32_t unit, uint32_t parameter) {
      std::mt19937_64 random(seed * 1'000'003 + step * 131 + unit * 17 + parameter);
      random.discard(3);
      const uint64_t number = random() % 8;
      return number == 0 ? Given::zero : number == 1 ? Given::skip : Given::gradients;
    };
    world_.given = [luck](uint64_t step, uint32_t unit) { return luck(step, unit, ~0u); };
    if (!manner_.by_parameter) return;
    world_.given_parameter = [luck](uint64_t step, uint32_t unit, uint32_t parameter) {
      return parameter == 0 && step % 2 == 1 ? Given::skip : luck(step, unit, parameter);
    };
  }

  std::string frozen_words(uint32_t number) const {
    const Unit& unit = world_.options.request.workload.units[number];
    if (unit.trainable) return "";
    return text(", unit ", number, " frozen in ", unit.code ? name_of(*unit.code) : "bf16");
  }
  uint64_t up_to(uint64_t n) { return random_() % (n + 1); }

  void open() {
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  // Whatever the budgets allow, for any number of micro-batches.
  void take_new_plan() {
    auto up_to = [this](uint64_t n) { return (*plans_)() % (n + 1); };
    PlanRequest request = engine_->request();
    PlanChoices& choices = request.choices;
    request.workload.micro_batches = 1 + static_cast<uint32_t>(up_to(3));
    choices.micro_batch_group = 1 + static_cast<uint32_t>(up_to(request.workload.micro_batches - 1));
    choices.activations = static_cast<ActivationChoice>(up_to(manner_.puts ? 3 : 1));
    choices.keep_share = up_to(1) ? std::optional(static_cast<double>(up_to(2)) / 2) : std::nullopt;
    choices.offload_host_share = up_to(1) ? std::optional(static_cast<double>(up_to(2)) / 2) : std::nullopt;
    choices.weights = static_cast<WeightTier>(up_to(2));
    choices.host_state_share = up_to(1) ? std::optional(static_cast<double>(up_to(2)) / 2) : std::nullopt;
    choices.retained_host_share = up_to(1) ? std::optional(static_cast<double>(up_to(2)) / 2) : std::nullopt;
    const uint32_t fewest_windows = engine_->steps_done() % 4 == 1 ? 20 : 3;
    choices.window_tiles = up_to(1) ? std::optional(fewest_windows + static_cast<uint32_t>(up_to(3))) : std::nullopt;
    request.forward_in_steps = up_to(1);
    choices.deferred_share = static_cast<double>(engine_->steps_done() % 3) / 2;
    choices.device_share.reset();
    if (!streams_.empty()) choices.device_share = static_cast<double>(up_to(2)) / 2;
    const Status taken = engine_->new_plan(request);
    if (taken.code() == Code::kDoesNotFit) {
      ++refused_plans;  // a device's arenas stay as they are
      return;
    }
    ASSERT_TRUE(taken.ok()) << taken.message();
    ASSERT_EQ(engine_->plan().micro_batches, request.workload.micro_batches);
    world_.options.request = engine_->request();
    ++new_plans;
    if (up_to(3) != 0) return;
    ASSERT_EQ(world_.words_different(*engine_), 0u) << "with the new plan, before its first step";
  }
  void evaluate() {
    const Result<TrainingWorld::Answers> answers = world_.evaluate(*engine_);
    ASSERT_TRUE(answers.ok()) << answers.status().message();
    ASSERT_EQ(*answers, world_.plain_evaluate());
  }
  // Within a step. In its backward passes updates may have begun.
  void evaluate_before(const ComputePass& pass) {
    const Result<TrainingWorld::Answers> answers = world_.evaluate(*engine_);
    const bool may_be_late = pass.direction == Direction::backward;
    const std::string late = "begin_forward: the step has complete gradients, and weights are being updated";
    if (!answers.ok() && may_be_late && answers.status().message() == late) return;
    ASSERT_TRUE(answers.ok()) << answers.status().message();
    ASSERT_EQ(*answers, world_.plain_evaluate());
    ++evaluated;
  }
  void reopen() {
    ASSERT_TRUE(engine_->settle().ok());
    engine_.reset();
    open();
  }
  // The trainer fails somewhere in the step.
  void discard_within(uint32_t count) {
    if (engine_->plan().durability.kind != Durability::Kind::step && !engine_->plan().clipping) return;
    TrainingWorld::Manner failing = manner_;
    uint64_t passes = up_to(12);
    failing.before_pass = [&](const ComputePass&) {
      return passes-- == 0 ? Status(Code::kEnvironment, "out of data") : Status();
    };
    const Result<StepReport> report = world_.train(*engine_, count, 1, failing);
    if (report.ok()) {
      world_.plain_train(engine_->steps_done(), count, 1);
      return;
    }
    ASSERT_EQ(report.status().message(), "out of data");
    const Status discarded_well = engine_->discard();
    ASSERT_TRUE(discarded_well.ok()) << discarded_well.message();
    ++discarded;
  }

  std::mt19937_64 random_, evaluations_;
  std::optional<std::mt19937_64> plans_;
  bool leaves_out_ = false;
  std::unique_ptr<test::Delays> delays_;  // outlives the engine
  TrainingWorld world_;
  TrainingWorld::Manner manner_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<TrainerStream>> streams_;  // end first: what is on them reads the engine's memory
};

inline void leave_the_bits_with_new_plans(const CourseDevice* device = nullptr) {
  int new_plans = 0, refused = 0;
  const bool all = test::kStride == 1;  // instrumented builds are slow
  for (uint64_t seed = 1; seed <= (all ? 12 : 4); ++seed) {
    Course course(seed, device);
    course.change_plans(seed);
    SCOPED_TRACE(text("seed ", seed, ": ", course.words()));
    course.run(6);
    if (testing::Test::HasFailure()) return;
    new_plans += course.new_plans;
    refused += course.refused_plans;
  }
  EXPECT_GT(new_plans, all ? 10 : 2) << refused << " were refused";
}

inline void leave_the_bits_of_a_plain_loop(const CourseDevice* device = nullptr) {
  int struck = 0, skipped = 0, discarded = 0, offloaded = 0, spilled = 0, in_codes = 0, evaluated = 0;
  int resting_there = 0, updated_there = 0;
  uint64_t absences = 0;
  // Instrumented builds are slow.
  const bool all = test::kStride == 1;
  for (uint64_t seed = 1; seed <= (all ? 40 : 6); ++seed) {
    Course course(seed, device);
    SCOPED_TRACE(text("seed ", seed, ": ", course.words()));
    course.run(5);
    if (testing::Test::HasFailure()) return;
    struck += course.struck;
    skipped += course.skipped;
    discarded += course.discarded;
    offloaded += course.offloaded;
    spilled += course.spilled;
    in_codes += course.in_codes;
    evaluated += course.evaluated;
    resting_there += course.resting_there;
    updated_there += course.updated_there;
    absences += course.absences();
  }
  if (!all) return;
  EXPECT_GT(struck, 20);
  EXPECT_GT(skipped, 5);
  EXPECT_GT(discarded, 5);
  EXPECT_GT(offloaded, device != nullptr ? 50 : -1);
  EXPECT_GT(spilled, 50);
  EXPECT_GT(in_codes, 10);
  EXPECT_GT(evaluated, 100);
  EXPECT_GT(absences, 200u);
  EXPECT_GT(updated_there, device != nullptr ? 30 : -1);
  EXPECT_GT(resting_there, device != nullptr ? updated_there : -1) << "frozen ones besides";
}

}  // namespace penstock::engine
