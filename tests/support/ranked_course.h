// RankedCourse: whole training steps of several ranks, drawn by a seed, as one of them runs it. All draw the same model
// and steps; each draws budgets, placements and delays of its own. Every rank has a plain loop of all of them beside
// it.
#pragma once

#include <random>
#include <thread>

#include "runtime/engine/ranks/ranked_engine.h"
#include "runtime/engine/seconds_since.h"
#include "tests/support/course_device.h"
#include "tests/support/engine_by_copies.h"

namespace penstock::engine {

class RankedCourse {
 public:
  // On the device, if there is one; otherwise in place.
  RankedCourse(uint64_t seed, const RankPlace& place, uint32_t group_ranks, bool keeps_weights, RankCodes codes = {},
               const CourseDevice* device = nullptr,
               const std::vector<uint64_t>& unit_elements = {70'000, 65'536, 400'001, 40'000, 20'000})
      : seed_(seed),
        place_(place),
        common_(seed),
        own_(seed * 7919 + place.rank),
        // Of more and of fewer blocks than there are ranks, and of one.
        world_(seed, 1 + static_cast<uint32_t>(common(1)), unit_elements) {
    PlanRequest& request = world_.options.request;
    request.workload.micro_batches = 1 + static_cast<uint32_t>(common(3));
    request.workload.codes = codes;
    std::vector<std::vector<uint32_t>> uses = {{0}, {1}, {2}, {3}, {4}};
    for (uint64_t again = common(2); again > 0; --again) uses.insert(uses.begin() + 2, std::vector<uint32_t>{1});
    if (common(1)) uses.back().push_back(0);  // tied
    world_.set_uses(uses);
    if (common(2) == 0) request.workload.units[3].trainable = false;
    manner_.puts = request.stores_activations = common(1);
    Clipping& clipping = request.workload.clipping;
    const double norms[] = {0, 1e-4, 1e3};
    clipping.norm = world_.settings.clip = norms[common(2)];
    clipping.skips_overflow = world_.settings.skip_overflow = common(1);
    world_.settings.loss_scale = common(1) ? 1 : 1024;
    manner_.by_parameter = common(1);
    // Each rank's own. What must be alike they are to agree on.
    request.choices.micro_batch_group = 1 + static_cast<uint32_t>(own(request.workload.micro_batches - 1));
    request.choices.activations = static_cast<ActivationChoice>(own(1));
    request.choices.weights = static_cast<WeightTier>(own(2));
    if (own(1)) request.choices.host_state_share = static_cast<double>(own(2)) / 2;
    if (own(1)) request.choices.retained_host_share = static_cast<double>(own(2)) / 2;
    if (own(1)) request.choices.window_tiles = 3 + static_cast<uint32_t>(own(3));
    request.durability = Durability{static_cast<Durability::Kind>(own(2)), 2};
    manner_.leaves_zeros = own(1);
    world_.options.update_threads = 1 + static_cast<uint32_t>(own(1));
    manner_.before_pass = [this](const ComputePass&) { return before_pass(); };
    for (const plain::Unit& unit : world_.plain().units) first_values_.push_back(unit.p);
    if (device != nullptr) compute_on_device(*device);
    options_ = {.engine = world_.options, .group_ranks = group_ranks, .keeps_weights = keeps_weights};
  }

  // Of the collective for passes.
  uint64_t memory_bytes() const { return RankedEngine::memory_of(options_, place_.ranks).shared_bytes(); }
  RankedOptions& options() { return options_; }
  TrainingWorld& world() { return world_; }

  Status run(Ranks& ranks, uint64_t steps) {
    PENSTOCK_TRY(create(ranks));
    PENSTOCK_TRY_ASSIGN(engine, RankedEngine::open(options_, ranks));
    while (engine->steps_done() < steps) {
      PENSTOCK_TRY(step(*engine));
      if (common(1)) PENSTOCK_TRY(evaluate(*engine));
      if (common(3) == 0) {
        PENSTOCK_TRY(engine->settle());
        engine.reset();
        PENSTOCK_TRY_ASSIGN(again, RankedEngine::open(options_, ranks));
        engine = std::move(again);
      }
    }
    PENSTOCK_TRY(engine->settle());
    return compare(*engine);
  }

  // Goes on with a store that an earlier run has left, killed or not. `say` is told what was found, and what is
  // durable.
  Status live(Ranks& ranks, uint64_t more_steps, const std::function<void(const std::string&)>& say) {
    options_.engine.on_durable = [&say](uint64_t step) { say(text("durable ", step)); };
    PENSTOCK_TRY_ASSIGN(engine, RankedEngine::open(options_, ranks));
    for (const std::string& remark : engine->remarks()) say("remark " + remark);
    say(text("opened ", engine->steps_done()));
    catch_up(engine->steps_done());
    if (engine->restored_state() != TrainingWorld::trainer_state(engine->steps_done())) {
      return Status(Code::kComparison, text("the trainer's state is not that of step ", engine->steps_done()));
    }
    PENSTOCK_TRY(compare(*engine));
    say("goes on");
    const uint64_t steps = engine->steps_done() + more_steps;
    while (engine->steps_done() < steps) PENSTOCK_TRY(step(*engine));
    PENSTOCK_TRY(engine->settle());
    return compare(*engine);
  }

  Status create(Ranks& ranks) {
    return RankedEngine::create(options_, ranks, [this](uint32_t unit, uint64_t first, std::span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = first_values_[unit][first + i];
      }
      return Status();
    });
  }

  // The next of the course; in the plain loop too.
  Status step(RankedEngine& engine) {
    const Drawn drawn = draw(engine.steps_done() + 1);
    if (drawn.passes_before_discard) PENSTOCK_TRY(discard_within(engine, drawn));
    // Gradients first: the plain loop's weights are those before the step.
    Gradients given = plain_gradients(drawn);
    prepare(drawn, place_.rank);
    const auto& absent_here = drawn.absent_on[place_.rank];
    if (absent_here) {
      manner_.without = {drawn.absent_unit};
      const bool by_parameter = own(1) != 0;
      at_first_pass_ = [this, &engine, &drawn, how = *absent_here, by_parameter] {
        PENSTOCK_TRY(refuse_absent_without_meaning(engine));
        return leave_out(engine, drawn.absent_unit, how, by_parameter);
      };
    }
    const Result<StepReport> report = train(engine, drawn.count, drawn.size_on(place_.rank));
    manner_.without.clear();
    PENSTOCK_TRY(report.status());
    collective_busy_s_ += report->busy_s[static_cast<size_t>(Lane::collective)];
    plain_update(drawn, std::move(given));
    if (drawn.skips != (report->verdict == Verdict::skip)) {
      return Status(Code::kComparison,
                    text("step ", report->step, ": the verdict is ", static_cast<int>(report->verdict)));
    }
    struck += report->verdict == Verdict::strike;
    skipped += drawn.skips;
    return Status();
  }

  // The plain loop alone, up to that step.
  void catch_up(uint64_t steps) {
    while (plain_steps_ < steps) {
      const Drawn drawn = draw(plain_steps_ + 1);
      plain_update(drawn, plain_gradients(drawn));
    }
  }

  // Words of this rank's shards that differ from the plain loop's.
  uint64_t words_different(RankedEngine& engine) {
    uint64_t different = 0;
    for (uint32_t unit = 0; unit < world_.plain().units.size(); ++unit) {
      const plain::Unit& expected = world_.plain().units[unit];
      const ElementRun shard = engine.shards().shard(unit, place_.rank);
      std::vector<uint16_t> high(shard.elements()), low(shard.elements());
      std::vector<float> m(shard.elements()), v(shard.elements());
      if (!read(engine, unit, Role::weight, high)) return ~uint64_t{0};
      for (size_t i = 0; i < high.size(); ++i) different += high[i] != expected.high(shard.begin + i);
      if (!world_.trainable(unit)) continue;
      const bool all_read = read(engine, unit, Role::master_low, low) && read(engine, unit, Role::momentum, m) &&
                            read(engine, unit, Role::variance, v);
      if (!all_read) return ~uint64_t{0};
      for (size_t i = 0; i < low.size(); ++i) {
        different += low[i] != expected.low(shard.begin + i);
        different += plain::bits(m[i]) != plain::bits(expected.m[shard.begin + i]);
        different += plain::bits(v[i]) != plain::bits(expected.v[shard.begin + i]);
      }
    }
    return different;
  }
  Status compare(RankedEngine& engine) {
    if (collective_busy_s_ > seconds_since(began_)) {
      return Status(Code::kComparison, text("the collective lane says that it was busy for ", collective_busy_s_,
                                            " s, of ", seconds_since(began_)));
    }
    const uint64_t different = words_different(engine);
    if (different == 0 && world_.activation_bytes_different == 0) return Status();
    return Status(Code::kComparison,
                  text("rank ", place_.rank, ", step ", engine.steps_done(), ": ", different, " words differ, ",
                       world_.activation_bytes_different.load(), " bytes of activations"));
  }

  const RankPlace& place() const { return place_; }
  int struck = 0, skipped = 0, discarded = 0, absent = 0;

 private:
  void compute_on_device(const CourseDevice& device) {
    PlanChoices& choices = world_.options.request.choices;
    if (manner_.puts) choices.activations = static_cast<ActivationChoice>(own(3));
    if (own(1)) choices.offload_host_share = static_cast<double>(own(2)) / 2;
    compute_on(device, own_(), 1 + static_cast<uint32_t>(own(1)), world_, streams_);
    if (device.make_stream) return;
    manner_.puts = world_.options.request.stores_activations = false;
    choices.activations = static_cast<ActivationChoice>(own(1));
    copies_ = [open = device.open, largest = largest_unit()] { return open(0, largest * sizeof(float)).value(); };
  }
  uint64_t largest_unit() const {
    uint64_t most = 0;
    for (const Unit& unit : world_.options.request.workload.units) most = std::max(most, unit.elements);
    return most;
  }

  // By a trainer that reaches what the engine gives it.
  template <typename Do>
  auto in_reach(RankedEngine& engine, Do what) {
    if (!copies_) return what(engine);
    if (!copying_) copying_ = copies_();
    EngineByCopies copied(engine, *copying_);
    return what(copied);
  }
  Result<StepReport> train(RankedEngine& engine, uint32_t count, float size) {
    return in_reach(engine, [&](auto& reached) { return world_.train(reached, count, size, manner_); });
  }

  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

  uint64_t common(uint64_t most) { return common_() % (most + 1); }
  uint64_t own(uint64_t most) { return own_() % (most + 1); }

  Status before_pass() {
    if (own(7) == 0) std::this_thread::sleep_for(std::chrono::microseconds(own(2000)));
    if (at_first_pass_) PENSTOCK_TRY(std::exchange(at_first_pass_, nullptr)());
    if (passes_left_ && (*passes_left_)-- == 0) return Status(Code::kEnvironment, "out of data");
    return Status();
  }

  // What happens in a step, by its number alone.
  struct Drawn {
    uint64_t number = 0;
    uint32_t count = 1;                             // of micro-batches
    std::optional<uint64_t> passes_before_discard;  // the trainers of all ranks fail at the same one, at first
    // One rank's gradients overflow: all of them, or those of a unit that two ranks own, or one.
    bool skips = false, of_one_unit = false;
    uint32_t overflowing = 0, overflowing_unit = 0;
    float usual = 1;
    // Of one unit: without a gradient on all ranks, or on some, or on some said to be zero.
    uint32_t absent_unit = 0;
    std::vector<std::optional<Absent>> absent_on;  // by rank

    float size_on(uint32_t rank) const { return skips && !of_one_unit && rank == overflowing ? kNan : usual; }
    bool is_absent(uint32_t rank, uint32_t unit) const { return absent_on[rank] && unit == absent_unit; }
  };
  using Gradients = std::vector<std::vector<std::vector<uint16_t>>>;  // by rank and unit

  Drawn draw(uint64_t number) {
    common_.seed(seed_ * 1'000'003 + number);
    const Workload& workload = world_.options.request.workload;
    Drawn drawn;
    drawn.number = number;
    drawn.count = 1 + static_cast<uint32_t>(common(workload.micro_batches - 1));
    if (common(4) == 0) drawn.passes_before_discard = common(5);
    drawn.usual = (common(1) ? 1e-3f : 2.0f) * static_cast<float>(world_.settings.loss_scale);
    drawn.absent_on.resize(place_.ranks);
    drawn.absent_unit = static_cast<uint32_t>(common(4));
    const bool has_absent = common(2) == 0 && world_.trainable(drawn.absent_unit);
    const uint64_t who = common(2) == 0 ? ~uint64_t{0} : common_();  // by bit
    const bool some_zero = common(2) == 0;
    for (uint32_t rank = 0; rank < place_.ranks; ++rank) {
      if (!has_absent || (who >> rank & 1) == 0) continue;
      drawn.absent_on[rank] = some_zero && rank % 2 == 0 ? Absent::zero : Absent::skip;
    }
    drawn.skips = workload.clipping.skips_overflow && common(3) == 0;
    drawn.overflowing = static_cast<uint32_t>(common(place_.ranks - 1));
    // In some uses a unit of one parameter has no gradient that could overflow.
    drawn.overflowing_unit = common(1) ? 4 : 0;
    drawn.of_one_unit = common(2) != 0 && drawn.skips &&
                        workload.units[drawn.overflowing_unit].parameters.size() != 1 &&
                        !drawn.is_absent(drawn.overflowing, drawn.overflowing_unit);
    return drawn;
  }

  void prepare(const Drawn& drawn, uint32_t rank) {
    world_.first_sample = rank * drawn.count;
    world_.overflowing_unit.reset();
    if (drawn.of_one_unit && rank == drawn.overflowing) world_.overflowing_unit = drawn.overflowing_unit;
  }

  // A unit as a whole, or each of its parameters.
  Status leave_out(RankedEngine& engine, uint32_t unit, Absent how, bool by_parameter) {
    const auto parameters = static_cast<uint32_t>(world_.options.request.workload.units[unit].parameters.size());
    if (!by_parameter || parameters == 0) return engine.absent_gradient(unit, how);
    for (uint32_t i = 0; i < parameters; ++i) PENSTOCK_TRY(engine.absent_gradient(ParameterId{unit, i}, how));
    return Status();
  }

  Status refuse_absent_without_meaning(RankedEngine& engine) {
    const Workload& workload = world_.options.request.workload;
    const auto units = static_cast<uint32_t>(workload.units.size());
    std::vector<Status> refused = {
        engine.absent_gradient(units, Absent::skip), engine.absent_gradient(ParameterId{units, 0}, Absent::skip),
        engine.absent_gradient(ParameterId{0, static_cast<uint32_t>(workload.units[0].parameters.size())},
                               Absent::skip)};
    if (!workload.units[3].trainable) {
      refused.push_back(engine.absent_gradient(3, Absent::zero));
      refused.push_back(engine.absent_gradient(ParameterId{3, 0}, Absent::zero));
    }
    for (const Status& status : refused) {
      if (status.code() != Code::kUsage) return Status(Code::kComparison, "a gradient without meaning may be absent");
    }
    return Status();
  }

  Status discard_within(RankedEngine& engine, const Drawn& drawn) {
    if (engine.plan().durability.kind != Durability::Kind::step && !engine.plan().clipping) return Status();
    world_.first_sample = place_.rank * drawn.count;
    world_.overflowing_unit.reset();
    passes_left_ = drawn.passes_before_discard;
    const Result<StepReport> report = train(engine, drawn.count, 1);
    passes_left_.reset();
    if (report.ok()) return Status(Code::kComparison, "the step did not end with its trainer");
    if (report.status().message() != "out of data") return report.status();
    ++discarded;
    return engine.discard();
  }

  Gradients plain_gradients(const Drawn& drawn) {
    Gradients given;
    for (uint32_t rank = 0; rank < place_.ranks; ++rank) {
      prepare(drawn, rank);
      given.push_back(world_.plain_gradients(drawn.number, drawn.count, drawn.size_on(rank)));
    }
    return given;
  }

  void plain_update(const Drawn& drawn, Gradients given) {
    std::set<uint32_t> untouched;
    for (uint32_t unit = 0; unit < world_.plain().units.size(); ++unit) {
      bool skipped_by_all = true;
      for (uint32_t rank = 0; rank < place_.ranks; ++rank) {
        const bool is_absent = drawn.is_absent(rank, unit);
        skipped_by_all = skipped_by_all && is_absent && *drawn.absent_on[rank] == Absent::skip;
        if (is_absent) std::fill(given[rank][unit].begin(), given[rank][unit].end(), uint16_t{0});
      }
      if (skipped_by_all) untouched.insert(unit);
    }
    absent += static_cast<int>(untouched.size());
    std::vector<std::vector<uint16_t>>& all = given[0];
    for (uint32_t unit = 0; place_.ranks > 1 && unit < all.size(); ++unit) {
      std::vector<std::vector<float>> by_rank;
      for (uint32_t rank = 0; rank < place_.ranks; ++rank) by_rank.push_back(sent(given[rank][unit]));
      for (size_t e = 0; e < all[unit].size(); ++e) {
        float sum = by_rank[0][e];
        for (uint32_t rank = 1; rank < place_.ranks; ++rank) sum += by_rank[rank][e];
        all[unit][e] = TrainingWorld::bf16_of(sum);
      }
    }
    world_.plain_update(all, untouched);
    plain_steps_ = drawn.number;
  }

  // What the rank that adds up makes of one rank's gradient.
  std::vector<float> sent(const std::vector<uint16_t>& given) const {
    std::vector<float> values(given.size());
    std::transform(given.begin(), given.end(), values.begin(), TrainingWorld::float_of);
    if (world_.options.request.workload.codes.gradients) plain::round_to_int4(values);
    return values;
  }

  Status evaluate(RankedEngine& engine) {
    PENSTOCK_TRY_ASSIGN(answers, in_reach(engine, [this](auto& reached) { return world_.evaluate(reached); }));
    return answers == world_.plain_evaluate() ? Status() : Status(Code::kComparison, "an evaluation differs");
  }

  template <typename T>
  static bool read(RankedEngine& engine, uint32_t unit, Role role, std::vector<T>& values) {
    const Status status = engine.read_shard(unit, role, std::as_writable_bytes(std::span(values)));
    if (!status.ok()) std::printf("%s\n", status.message().c_str());
    return status.ok();
  }

  const uint64_t seed_;
  const RankPlace place_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double collective_busy_s_ = 0;
  std::mt19937_64 common_, own_;
  TrainingWorld world_;
  TrainingWorld::Manner manner_;
  RankedOptions options_;
  std::vector<std::vector<float>> first_values_;  // by unit
  std::optional<uint64_t> passes_left_;
  std::function<Status()> at_first_pass_;
  uint64_t plain_steps_ = 0;
  std::vector<std::unique_ptr<TrainerStream>> streams_;
  std::function<std::unique_ptr<Device>()> copies_;  // where the trainer does not reach the device's memory
  std::unique_ptr<Device> copying_;
};

}  // namespace penstock::engine
