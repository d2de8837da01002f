// What engine_worker does to its store, and what a store that it was killed over may hold.
//
// Calm steps, struck ones, overflows, as in EngineCrashWorld; some are settled, and after every fifth step part of a
// momentum is written over, by a life that finds it so again; before every third another plan takes over. Steps are
// updates, or whole ones: forward and backward through every unit, with activations that leave for the drives.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gpu/host_device.h"
#include "tests/support/training_world.h"

namespace penstock::engine {

constexpr const char* kPhases[] = {"create", "open", "step", "redo", "overflow", "settle", "write", "plan"};

class WorkerWorld {
 public:
  // `durability`: "step", all on drives; or "every2", half of the states in host memory; or "passes": as "step", in
  // whole steps; or "device": whole steps on a device on which all rests, durable every second.
  WorkerWorld(const std::string& durability, const std::vector<std::string>& folders)
      : world_(47, static_cast<uint32_t>(folders.size()), elements()), first_(world_.plain()) {
    PlanRequest& request = world_.options.request;
    request.choices.window_tiles = 4;
    request.choices.retained_host_share = 0.5;
    request.choices.weights = WeightTier::nvme;
    request.choices.host_state_share = 0;
    if (durability == "every2") {
      request.choices.weights = WeightTier::host;
      request.choices.host_state_share = 0.5;
      request.durability = {Durability::Kind::every, 2};
    }
    on_device_ = durability == "device";
    passes_ = on_device_ || durability == "passes";
    // Of a struck step, the last gradients pass it.
    request.workload.clipping.norm = world_.settings.clip = passes_ ? 0.05 : 14;
    if (passes_) {
      std::vector<std::vector<uint32_t>> uses;
      for (uint32_t unit = 0; unit < request.workload.units.size(); ++unit) uses.push_back({unit});
      world_.set_uses(uses);
      request.workload.micro_batches = kMicroBatches;
      request.choices.activations = ActivationChoice::offload;
    }
    if (on_device_) {
      request.durability = {Durability::Kind::every, 2};
      request.machine.devices = 1;
      request.machine.host_to_device_gbps = request.machine.device_to_host_gbps = 25;
      request.budgets.device_bytes = 64 * kMiB;
      request.choices.device_share = 1;
      world_.options.device = [](uint64_t arena_bytes) { return gpu::open_host_device({.arena_bytes = arena_bytes}); };
    }
    world_.options.request.workload.clipping.skips_overflow = world_.settings.skip_overflow = true;
    world_.options.drives = direct_drives(folders);
  }

  Status create() {
    return Engine::create(
        world_.options,
        [this](uint32_t unit, uint64_t first, std::span<float> values) {
          std::copy_n(first_.units[unit].p.begin() + static_cast<ptrdiff_t>(first), values.size(), values.begin());
          return Status();
        },
        aio::CreateOptions::Existing::replace);
  }
  Result<std::unique_ptr<Engine>> open(std::function<void(uint64_t)> on_durable) {
    world_.options.on_durable = std::move(on_durable);
    return Engine::open(world_.options);
  }

  // So many steps; `say` hears of what begins, one of kPhases, and of "wrote N".
  Status live(Engine& engine, uint64_t steps, const std::function<void(const std::string&)>& say) {
    for (uint64_t i = 0; i < steps; ++i) {
      PENSTOCK_TRY(write_if_due(engine, say));
      if (engine.steps_done() % 3 == 1) {
        say("plan");
        PENSTOCK_TRY(engine.new_plan(another_request(engine)));
      }
      const uint64_t number = engine.steps_done() + 1;
      const float size = size_of(number);
      say(size == kStruck ? "redo" : size == kInfinite ? "overflow" : "step");
      const Verdict expected = size == kStruck ? Verdict::strike : size == kInfinite ? Verdict::skip : Verdict::confirm;
      PENSTOCK_TRY_ASSIGN(report, passes_ ? world_.train(engine, kMicroBatches, loss_of(size), {.puts = true})
                                          : world_.step(engine, size));
      if (report.verdict != expected) return Status(Code::kUsage, text("step ", number, " ends with another verdict"));
      // A redo goes on behind the step.
      if (size == 0.003f) say("settle");
      if (size != 0.001f) PENSTOCK_TRY(engine.settle());
    }
    return Status();
  }

  // Empty, or how the store differs from the plain loop; `wrote`: the newest step whose writing over was promised.
  std::string difference(Engine& engine, uint64_t wrote) {
    const uint64_t step = engine.steps_done();
    if (step < plain_steps_) return text("went back from step ", plain_steps_, " to ", step);
    while (plain_steps_ < step) {
      if (is_due(plain_steps_)) write_over(world_.plain(), plain_steps_);
      ++plain_steps_;
      const float size = size_of(plain_steps_);
      if (passes_) {
        world_.plain_train(plain_steps_, kMicroBatches, loss_of(size));
      } else {
        world_.plain_step(plain_steps_, size);
      }
    }
    const uint64_t words = world_.words_different(engine);
    if (words == 0 && (!is_due(step) || wrote < step)) return "";
    if (is_due(step)) {
      PlainModel written = world_.plain();
      write_over(written, step);
      if (world_.words_different(engine, written) == 0) return "";
    }
    return text("step ", step, ": ", words, " words differ");
  }
  void start_anew() {
    world_.plain() = first_;
    plain_steps_ = 0;
  }

 private:
  static constexpr uint64_t kFirst = 60'000, kCount = 9'000;  // of unit 0, over the border of its two tiles
  static constexpr float kStruck = 0.05f, kInfinite = std::numeric_limits<float>::infinity();
  // Of a whole step. So much that it is struck wherever training has led, be the model all but saturated.
  static constexpr float loss_of(float size) { return size == kStruck ? 1e6f : size; }
  static constexpr uint32_t kMicroBatches = 2;

  static std::vector<uint64_t> elements() {
    std::vector<uint64_t> units(11, 20'000);
    units[0] = 70'000;
    return units;
  }
  static float size_of(uint64_t step) {
    static constexpr float kSizes[] = {0.001f, kStruck, 0.003f, kInfinite, 0.001f, 0.003f, 0.001f};
    return kSizes[(step - 1) % std::size(kSizes)];
  }
  static bool is_due(uint64_t step) { return step > 0 && step % 5 == 0; }
  static float written_value(uint64_t step, uint64_t i) { return static_cast<float>((step * 7 + i) % 31) * 1e-4f; }
  static void write_over(PlainModel& model, uint64_t step) {
    for (uint64_t i = 0; i < kCount; ++i) model.units[0].m[kFirst + i] = written_value(step, i);
  }
  // Of each third step another: what rests in host memory moves there and back.
  PlanRequest another_request(const Engine& engine) const {
    PlanRequest request = engine.request();
    const uint64_t number = engine.steps_done() / 3;
    if (on_device_) {  // whose arena stays as it is
      request.choices.device_share = number % 2 == 0 ? 1 : 0.5;
      return request;
    }
    request.choices.weights = number % 2 == 0 ? WeightTier::host : WeightTier::nvme;
    request.choices.host_state_share = number % 2 == 0 ? static_cast<double>(number % 3) / 2 : 0;
    request.choices.window_tiles = 4 + static_cast<uint32_t>(number % 2);
    if (request.workload.scope == StepScope::training) {
      request.choices.micro_batch_group = 1 + static_cast<uint32_t>(number % 2);
      request.choices.activations = number % 2 == 0 ? ActivationChoice::recompute : ActivationChoice::offload;
    }
    return request;
  }
  Status write_if_due(Engine& engine, const std::function<void(const std::string&)>& say) {
    const uint64_t step = engine.steps_done();
    if (!is_due(step)) return Status();
    PENSTOCK_TRY(engine.settle());
    std::vector<float> values(kCount);
    for (uint64_t i = 0; i < kCount; ++i) values[i] = written_value(step, i);
    say("write");
    PENSTOCK_TRY(engine.write(0, Role::momentum, kFirst, std::as_bytes(std::span(values))));
    say(text("wrote ", step));
    return Status();
  }

  TrainingWorld world_;
  bool passes_ = false, on_device_ = false;
  PlainModel first_;
  uint64_t plain_steps_ = 0;  // of the plain loop, that step's writing over not included
};

}  // namespace penstock::engine
