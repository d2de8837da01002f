// Everything at once, at random: placements, slots, durability, clipping, orders of gradients and gradients that do not
// come, frozen units, verbs between steps, drives that are slow and fail, runs that end and begin. The state is the
// plain loop's at every look, a committed step is found after every failure, and no two requests under way ever touch
// the same bytes.
//
// STORM_SEEDS sets how many such lives are run, STORM_SEED the only one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <optional>

#include "tests/support/engine_world.h"
#include "tests/support/exclusive_backend.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/instrumented.h"
#include "tests/support/watchdog.h"

namespace penstock::engine {
namespace {

using aio::Fault;

uint64_t number_from(const char* variable, uint64_t usual) {
  const char* asked = std::getenv(variable);
  return asked ? std::strtoull(asked, nullptr, 10) : usual;
}

class Storm {
 public:
  explicit Storm(uint64_t seed)
      : random_(seed), world_(seed, static_cast<uint32_t>(1 + random_() % 3), some_units(random_)) {
    PlanRequest& request = world_.options.request;
    auto one_of = [&](auto... values) {
      const std::array all{values...};
      return all[random_() % all.size()];
    };
    request.choices.window_tiles = one_of(2u, 4u, 8u, 36u);
    request.choices.host_state_share = one_of(0.0, 0.0, 0.5, 1.0);
    request.choices.retained_host_share = one_of(0.0, 0.5, 1.0);
    request.choices.weights = one_of(WeightTier::nvme, WeightTier::host, WeightTier::automatic);
    if (*request.choices.host_state_share > 0) request.choices.weights = WeightTier::host;
    request.durability = one_of(Durability{}, Durability{Durability::Kind::every, 2},
                                Durability{Durability::Kind::every, 3}, Durability{Durability::Kind::exit, 1});
    request.slots = one_of(0u, 0u, 0u, 1u, 2u, 3u);
    request.workload.micro_batches = world_.micro_batches = one_of(1u, 1u, 3u);
    // Of the first unit, which is written to, some tiles are always trained.
    frozen_ = one_of(false, false, true);
    for (size_t unit = 1; frozen_ && unit < request.workload.units.size(); ++unit) {
      request.workload.units[unit].trainable = random_() % 3 > 0;
    }
    absent_ = one_of(false, true, true);
    world_.given = [this, seed](uint64_t step, uint32_t unit) {
      if (!absent_) return Given::gradients;
      std::mt19937_64 random(seed * 1'000'003 + step * 131 + unit);
      random.discard(4);
      const uint64_t luck = random() % 8;
      return luck == 0 ? Given::zero : luck <= 2 ? Given::skip : Given::gradients;
    };
    if (one_of(false, false, true)) {
      world_.give_gradients_in_parts();
      world_.given_parameter = [this, seed](uint64_t step, uint32_t unit, uint32_t parameter) {
        std::mt19937_64 random(seed * 1'000'033 + step * 131 + unit * 17 + parameter);
        random.discard(4);
        const uint64_t luck = absent_ ? random() % 8 : 7;
        return luck == 0 ? Given::zero : luck <= 2 ? Given::skip : Given::gradients;
      };
    }
    clips_ = one_of(true, true, false);
    if (clips_) {
      world_.options.request.workload.clipping.norm = world_.settings.clip = one_of(3.0, 10.0);
      world_.options.request.workload.clipping.skips_overflow = world_.settings.skip_overflow = random_() % 2 == 0;
    }
    world_.options.update_threads = one_of(1u, 2u);
    world_.options.on_durable = [this](uint64_t step) { promised_ = step; };
    faulty_ = random_() % 2 == 0;
    world_.make_backend_ = [this] {
      aio::FaultOptions faults;
      faults.seed = random_();
      faults.delay_chance = 0.5;
      faults.delay_rounds_max = random_() % 2 ? 16 : 400;
      if (faulty_ && random_() % 2) {
        faults.with(random_() % 2 ? Fault::eio : Fault::torn_write, 0.004).with(Fault::failed_flush, 0.01);
      }
      auto slow = std::make_unique<aio::FaultyBackend>(std::make_unique<aio::MemoryBackend>(), faults);
      return std::make_unique<aio::ExclusiveBackend>(std::move(slow), conflict_);
    };
  }

  // What was chosen, for a failure's message.
  std::string text_of() const {
    const PlanRequest& request = world_.options.request;
    return text(world_.drives(), " drives, ", request.slots, " slots, window ", *request.choices.window_tiles,
                ", state in host ", *request.choices.host_state_share, ", weights ",
                static_cast<int>(request.choices.weights), ", retained ", *request.choices.retained_host_share,
                ", durability ", static_cast<int>(request.durability->kind), "/", request.durability->steps,
                clips_ ? ", clipping" : "", faulty_ ? ", faults" : "", frozen_ ? ", frozen units" : "",
                absent_ ? ", absent gradients" : "", world_.in_parts ? ", by parameter" : "", ", ",
                world_.micro_batches, " micro-batches");
  }

  // Empty, or what went wrong.
  std::string run() {
    const auto backend = std::exchange(world_.make_backend_, nullptr);
    if (Status created = world_.create(); !created.ok()) return "create: " + created.message();
    world_.make_backend_ = backend;
    models_.push_back(world_.plain());
    for (int life = 0; life < 4; ++life) {
      if (std::string wrong = live(); !wrong.empty()) return wrong;
      if (!conflict_.empty()) return conflict_;
      if (lost_) return "";
    }
    return "";
  }

 private:
  static std::vector<uint64_t> some_units(std::mt19937_64& random) {
    std::vector<uint64_t> units{70'000};
    for (uint64_t more = 1 + random() % 11; more > 0; --more) units.push_back(500 + random() % 9'000);
    return units;
  }

  // One life of the engine. A failure ends it, and is no error if the drives were to fail.
  std::string live() {
    Result<std::unique_ptr<Engine>> opened = Engine::open(world_.options);
    if (!opened.ok()) {
      const bool torn = opened.status().message().find("(--space single)") != std::string::npos;
      lost_ = torn && world_.options.request.slots == 1;
      return lost_ || faulty_ ? "" : "open: " + opened.status().message();
    }
    Engine& engine = **opened;
    const uint64_t step = engine.steps_done();
    if (step < promised_) return text("step ", promised_.load(), " was promised, found step ", step);
    if (step >= models_.size()) return text("step ", step, " was never made");
    models_.resize(step + 1);
    Status status;
    for (uint64_t acts = 3 + random_() % 8; acts > 0 && status.ok(); --acts) {
      // A look reads through drives that may fail, so it is taken by the next life.
      if (!faulty_ && random_() % 3 == 0) {
        if (std::string wrong = look(engine); !wrong.empty()) return wrong;
      }
      status = act(engine);
    }
    if (status.ok() && random_() % 2) {
      status = engine.settle();
      if (status.ok()) promised_ = engine.steps_done();
    }
    if (!status.ok() && !faulty_) return status.message();
    opened->reset();
    // Nothing is slow or fails where it is looked at.
    const bool was_faulty = std::exchange(faulty_, false);
    std::string wrong = look_anew();
    faulty_ = was_faulty;
    return wrong;
  }

  std::string look_anew() {
    const auto backend = std::exchange(world_.make_backend_, nullptr);
    Result<std::unique_ptr<Engine>> engine = Engine::open(world_.options);
    world_.make_backend_ = backend;
    if (!engine.ok()) {
      lost_ = engine.status().message().find("(--space single)") != std::string::npos;
      return lost_ ? "" : "open: " + engine.status().message();
    }
    const uint64_t step = (*engine)->steps_done();
    if (step < promised_) return text("step ", promised_.load(), " was promised, found step ", step);
    if (step >= models_.size()) return text("step ", step, " was never made");
    const bool may_be_written = written_ && step + 1 == models_.size();
    if (may_be_written && world_.words_different(**engine, *written_) == 0) models_.back() = *written_;
    written_.reset();
    return look(**engine);
  }

  std::string look(Engine& engine) {
    const uint64_t words = world_.words_different(engine, models_[engine.steps_done()]);
    return words == 0 ? "" : text("step ", engine.steps_done(), ": ", words, " words differ");
  }

  Status act(Engine& engine) {
    switch (random_() % 8) {
      case 0:
        PENSTOCK_TRY(engine.settle());
        promised_ = engine.steps_done();
        return Status();
      case 1:
        return write(engine);
      case 2:
        return begin_and_discard(engine);
      default:
        return step(engine);
    }
  }

  Status step(Engine& engine) {
    const uint64_t number = engine.steps_done() + 1;
    static constexpr float kSizes[] = {0.001f, 0.002f, 0.05f, 0.02f, std::numeric_limits<float>::infinity()};
    const float size = kSizes[random_() % (world_.options.request.workload.clipping.skips_overflow ? 5 : 4)];
    shuffle_units();
    PENSTOCK_TRY(world_.step(engine, size).status());
    world_.plain() = models_[number - 1];
    world_.plain_step(number, size);
    models_.push_back(world_.plain());
    return Status();
  }

  Status write(Engine& engine) {
    const uint64_t first = 60'000 + random_() % 4'000, count = 1 + random_() % 5'900;
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random_() % 1'000) * 1e-5f;
    written_ = models_.back();
    std::copy(values.begin(), values.end(), written_->units[0].m.begin() + static_cast<ptrdiff_t>(first));
    PENSTOCK_TRY(engine.write(0, Role::momentum, first, std::as_bytes(std::span(values))));
    models_.back() = *written_;
    written_.reset();
    promised_ = engine.steps_done();
    return Status();
  }

  Status begin_and_discard(Engine& engine) {
    const PlanRequest& request = world_.options.request;
    if (!clips_ && (request.slots == 1 || request.durability->kind != Durability::Kind::step)) return Status();
    PENSTOCK_TRY(engine.begin({.groups = world_.groups, .micro_batches = world_.micro_batches}));
    shuffle_units();
    for (size_t given = random_() % (world_.unit_order.size() + 1); given > 0; --given) {
      const uint32_t unit = world_.unit_order[given - 1];
      const std::vector<uint16_t> gradient(request.workload.units[unit].elements, 0x3c00);
      const Given which = world_.given(random_() % 100, unit);
      PENSTOCK_TRY(world_.give(engine, unit, which, [&](uint32_t) { return gradient; }));
    }
    return engine.discard();
  }

  void shuffle_units() {
    std::vector<uint32_t>& order = world_.unit_order;
    order.clear();
    for (uint32_t unit = static_cast<uint32_t>(models_[0].units.size()); unit-- > 0;) order.push_back(unit);
    if (random_() % 2) std::shuffle(order.begin(), order.end(), random_);
  }

  std::mt19937_64 random_;
  EngineWorld world_;
  bool clips_ = false, faulty_ = false, frozen_ = false, absent_ = false, lost_ = false;
  std::string conflict_;
  std::vector<PlainModel> models_;     // by step
  std::optional<PlainModel> written_;  // what the newest of them may be instead
  std::atomic<uint64_t> promised_ = 0;
};

TEST(EngineStorm, LeavesThePlainLoopsStateOrACommittedStep) {
  const uint64_t only = number_from("STORM_SEED", 0);
  const uint64_t last = only ? only : number_from("STORM_SEEDS", test::fewer(60));
  for (uint64_t seed = only ? only : 1; seed <= last; ++seed) {
    Storm storm(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << storm.text_of());
    Watchdog watchdog(std::chrono::seconds(120), text("seed ", seed, ": ", storm.text_of()));
    ASSERT_EQ(storm.run(), "");
  }
}

}  // namespace
}  // namespace penstock::engine
