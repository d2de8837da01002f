#include "tests/support/engine_crash_world.h"

#include <limits>

#include "tests/support/scripted_backend.h"

namespace penstock::engine {
namespace {

// Calm steps, one that strikes with its last gradients only, one that overflows, again and again.
float gradient_size(uint64_t step) {
  static constexpr float kInfinite = std::numeric_limits<float>::infinity();
  static constexpr float kSizes[] = {0.001f, 0.05f, 0.002f, kInfinite, 0.001f, 0.003f};
  return kSizes[(step - 1) % std::size(kSizes)];
}

constexpr uint32_t kMicroBatches = 2;

// Twelve tiles.
std::vector<uint64_t> twelve_units() {
  std::vector<uint64_t> elements(12, 3000);
  for (uint64_t& each : elements) each -= static_cast<uint64_t>(&each - elements.data()) * 7;
  return elements;
}

}  // namespace

EngineCrashWorld::EngineCrashWorld(const EngineCrashSetting& setting)
    : world_(17, setting.drives, twelve_units()), trains_(setting.trains) {
  PlanRequest& request = world_.options.request;
  request.choices.window_tiles = setting.window_tiles;
  request.choices.host_state_share = setting.host_state_share;
  request.choices.weights = setting.weights;
  request.choices.retained_host_share = setting.retained_share;
  request.durability = setting.durability;
  request.slots = setting.slots;
  world_.options.request.workload.clipping.norm = world_.settings.clip = 5;
  world_.options.request.workload.clipping.skips_overflow = world_.settings.skip_overflow = true;
  if (setting.some_absent) {
    // Those that come first: of them, what an earlier step left in memory is written before the verdict.
    world_.given = [](uint64_t step, uint32_t unit) {
      return unit < 6 || (step + unit) % 3 == 0 ? Given::gradients : (step + unit) % 3 == 1 ? Given::skip : Given::zero;
    };
  }
  if (trains_) {
    world_.set_uses({{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11, 0}});
    request.workload.micro_batches = request.choices.micro_batch_group.emplace(kMicroBatches);
    request.choices.activations = ActivationChoice::offload;
    if (setting.on_device) {
      request.choices.offload_host_share = 0;
      compute_on(course_device(), /*seed=*/17, /*streams=*/1, world_, streams_);
    }
    request.workload.clipping.norm = world_.settings.clip = 1e-3;
  }
  Status created = world_.create();
  CHECK(created.ok(), created.message());
  plain_.push_back(world_.plain());
  for (uint64_t step = 1; step <= kStepsMax; ++step) {
    if (trains_) {
      world_.plain_train(step, kMicroBatches, gradient_size(step));
    } else {
      world_.plain_step(step, gradient_size(step));
    }
    plain_.push_back(world_.plain());
  }
}

aio::RecordedDrives EngineCrashWorld::new_drives() const {
  std::vector<aio::MemoryFile::Bytes> images;
  for (uint32_t drive = 0; drive < world_.drives(); ++drive) {
    images.push_back(world_.folder(drive).bytes(aio::RecordedDrives::kFile));
  }
  aio::RecordedDrives drives(std::move(images));
  drives.put_files();
  drives.acknowledge(0);
  return drives;
}

Result<std::unique_ptr<Engine>> EngineCrashWorld::open(const aio::RecordedDrives& drives,
                                                       const MakeBackend& make_backend) {
  world_.options.drives = [&drives, &make_backend]() -> Result<Drives> {
    return Drives{std::make_unique<aio::QueuedIoEngine>(make_backend()), drives.folders(), "memory"};
  };
  return Engine::open(world_.options);
}

std::string EngineCrashWorld::live(aio::RecordedDrives& drives, uint64_t steps, uint64_t seed, uint64_t requests) {
  Status status = run(
      drives, steps, seed, [&] { return drives.make_backend(seed, requests); },
      [&](uint64_t step) { drives.acknowledge(step); });
  drives.life_ended();
  return requests == aio::RecordedDrives::kNeverKilled ? status.message() : "";
}

std::string EngineCrashWorld::live_two_steps_at_once(aio::RecordedDrives& drives) {
  using aio::ScriptedBackend;
  std::atomic<bool> let_go = false;
  std::atomic<uint64_t> durable = 0;
  auto hold_first_write = [held = false](const aio::Piece& piece) mutable {
    if (held || piece.operation != aio::Operation::write) return ScriptedBackend::kPass;
    held = true;
    return ScriptedBackend::kHold;
  };
  MakeBackend make_backend = [&] {
    return drives.recorded(
        std::make_unique<ScriptedBackend>(std::make_unique<aio::MemoryBackend>(), hold_first_write, &let_go));
  };
  world_.options.on_durable = [&](uint64_t step) { drives.acknowledge(durable = step); };
  Result<std::unique_ptr<Engine>> engine = open(drives, make_backend);
  world_.options.on_durable = nullptr;
  Status status = engine.status();
  for (uint64_t step = 1; step <= 2 && status.ok(); ++step) {
    status = run_step(**engine).status();
  }
  const uint64_t too_early = durable;
  let_go = true;
  if (status.ok()) status = (*engine)->settle();
  if (engine.ok()) engine->reset();
  drives.life_ended();
  return too_early == 0 ? status.message() : text("step ", too_early, " was durable before its first tile");
}

Status EngineCrashWorld::run(const aio::RecordedDrives& drives, uint64_t steps, uint64_t seed,
                             const MakeBackend& make_backend, const std::function<void(uint64_t step)>& on_promised) {
  std::mt19937_64 random(seed);
  world_.options.on_durable = on_promised;
  Result<std::unique_ptr<Engine>> engine = open(drives, make_backend);
  world_.options.on_durable = nullptr;
  Status status = engine.status();
  for (uint64_t i = 0; i < steps && status.ok(); ++i) {
    status = run_step(**engine).status();
    const bool last = i + 1 == steps;
    if (!status.ok() || !(last || random() % 3 == 0)) continue;
    status = (*engine)->settle();
    if (status.ok()) on_promised((*engine)->steps_done());  // nothing is under way, so nobody else tells
  }
  if (engine.ok() && !status.ok()) on_failed(**engine, status);
  return status;
}

Result<StepReport> EngineCrashWorld::run_step(Engine& engine) {
  const float size = gradient_size(engine.steps_done() + 1);
  if (!trains_) return world_.step(engine, size);
  TrainingWorld::Manner manner{.puts = true};
  manner.before_pass = [this](const ComputePass& pass) {
    at(pass.direction == Direction::forward ? Moment::forward : Moment::backward);
    return Status();
  };
  manner.before_step = [this] { at(Moment::tail); };
  const Result<StepReport> report = world_.train(engine, kMicroBatches, size, manner);
  end_computing();
  PENSTOCK_TRY(report.status());
  if (world_.activation_bytes_different > 0) return Status(Code::kComparison, "activations came back as others");
  return report;
}

// What is on the trainer's stream reads the engine's memory.
void EngineCrashWorld::end_computing() const {
  std::promise<void> done;
  world_.computing.put([&done] { done.set_value(); });
  done.get_future().wait();
}

std::string EngineCrashWorld::compare(Engine& engine, const std::string& when) {
  const uint64_t step = engine.steps_done();
  if (uint64_t words = world_.words_different(engine, plain_[step])) {
    return text(when, ": step ", step, ": ", words, " words differ");
  }
  return "";
}

std::string EngineCrashWorld::check(const aio::RecordedDrives& drives, uint64_t acknowledged) {
  Result<std::unique_ptr<Engine>> engine = open(drives, [] { return std::make_unique<aio::MemoryBackend>(); });
  if (!engine.ok()) return "open: " + engine.status().message();
  const uint64_t step = (*engine)->steps_done();
  if (step < acknowledged) return text("step ", acknowledged, " was acknowledged, found step ", step);
  const std::string& state = (*engine)->restored_state();
  if (state != EngineWorld::trainer_state(step)) {
    return text("step ", step, " with the trainer's state '", state.substr(0, state.find('\n')), "'");
  }
  if (std::string wrong = compare(**engine, "opened"); !wrong.empty()) return wrong;
  for (uint64_t i = 0; i < 2; ++i) {
    Result<StepReport> report = run_step(**engine);
    if (!report.ok()) return "going on: " + report.status().message();
  }
  if (Status settled = (*engine)->settle(); !settled.ok()) return "going on: " + settled.message();
  return compare(**engine, "two steps on");
}

}  // namespace penstock::engine
