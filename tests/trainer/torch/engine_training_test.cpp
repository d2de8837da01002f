// A small transformer trained through the tiers has, bit for bit, the weights, masters and moments of the same model
// trained in plain memory by a plain loop; and it learns.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/trainer/engine_link.h"
#include "runtime/trainer/initial_values.h"
#include "runtime/trainer/torch/dry_step.h"
#include "runtime/trainer/torch/host_accelerator.h"
#include "runtime/trainer/torch/train_step.h"
#include "tests/support/capricious_device.h"
#include "tests/support/memory_drives.h"
#include "tests/trainer/torch/small_models.h"
#include "tools/update/plain_loop.h"

namespace penstock::trainer {
namespace {

constexpr uint32_t kMicroBatches = 3;

// Weights in plain memory; gradients are added up as they come, each use's of a unit apart.
class PlainMemory final : public EngineVerbs {
 public:
  PlainMemory(const Model& model, uint64_t seed) : model_(model) {
    for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
      std::vector<float> values(model.units[unit].elements);
      fill_initial_values(model, seed, unit, 0, values);
      units.emplace_back(std::move(values));
      units.back().parts.clear();
      for (const ModelParameter& parameter : model.units[unit].parameters) {
        const uint64_t end = parameter.first_element + round_up(parameter.elements, kParameterAlignmentElements);
        units.back().parts.push_back({parameter.shape.size() > 1 ? 0u : 1u, end});
      }
    }
  }

  void begin() {
    sums_.clear();
    weights_.clear();
    for (const plain::Unit& unit : units) {
      weights_.push_back(Buffer::on_heap(unit.p.size() * sizeof(uint16_t)));
      auto* words = reinterpret_cast<uint16_t*>(weights_.back().data());
      for (size_t i = 0; i < unit.p.size(); ++i) words[i] = unit.high(i);
    }
  }
  void end(const plain::Settings& settings) {
    for (uint32_t unit = 0; unit < units.size(); ++unit) {
      std::vector<float> total;
      for (const auto& [unit_and_use, sum] : sums_) {
        if (unit_and_use.first != unit) continue;
        if (total.empty()) {
          total = sum;
        } else {
          for (size_t i = 0; i < total.size(); ++i) total[i] += sum[i];
        }
      }
      for (size_t i = 0; i < total.size(); ++i) {
        const uint32_t b = plain::bits(total[i]);
        units[unit].g[i] = static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16);
      }
    }
    plain::step(units, settings, updates_);
  }

  Accelerator& accelerator() override { return accelerator_; }
  Result<std::vector<UnitWeights>> acquire(const ComputePass& pass) override {
    std::vector<UnitWeights> lent;
    for (uint32_t unit : model_.uses[pass.use].units) {
      lent.push_back({unit, units[unit].p.size(), weights_[unit].bytes()});
    }
    return lent;
  }
  Status release(const ComputePass&) override { return Status(); }
  Status gradient(const ComputePass& pass, uint32_t unit, uint64_t first, Dtype dtype,
                  std::span<const std::byte> values) override {
    auto [found, is_new] = sums_.try_emplace({unit, pass.use}, units[unit].p.size(), 0.0f);
    const uint64_t count = values.size() / bytes_of(dtype);
    for (uint64_t i = 0; i < count; ++i) {
      float x = 0;
      if (dtype == Dtype::fp32) {
        std::memcpy(&x, values.data() + 4 * i, 4);
      } else {
        uint16_t word = 0;
        std::memcpy(&word, values.data() + 2 * i, 2);
        x = plain::real(uint32_t{word} << 16);
      }
      found->second[first + i] = pass.micro_batch == 0 ? x : found->second[first + i] + x;
    }
    return Status();
  }
  Status put(uint32_t, uint32_t, uint32_t, std::span<const std::byte>) override { return Status(Code::kUsage, "put"); }
  Status get(uint32_t, uint32_t, uint32_t, std::span<std::byte>) override { return Status(Code::kUsage, "get"); }

  std::vector<plain::Unit> units;

 private:
  HostAccelerator accelerator_;
  const Model& model_;
  std::vector<Buffer> weights_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<float>> sums_;  // by unit and use
  uint64_t updates_ = 0;
};

// Counts upwards from a token that the micro-batch chooses: something to learn.
std::vector<MicroBatch> batches_of(uint32_t count) {
  std::vector<MicroBatch> batches;
  for (uint32_t mb = 0; mb < count; ++mb) {
    MicroBatch batch{.sequences = 2, .length = 16, .tokens = {}, .targets = {}};
    for (int32_t i = 0; i < 32; ++i) {
      const auto first = static_cast<int32_t>(mb * 20);
      batch.tokens.push_back(first + i % 16);
      batch.targets.push_back(first + i % 16 + 1);
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

struct Way {
  std::string name;
  ActivationChoice activations = ActivationChoice::recompute;
  Keeping keeping = Keeping::in_memory;
  std::optional<double> keep_share = {}, offload_host_share = {};
  bool on_device = false;
  uint32_t group = kMicroBatches;
  WeightTier weights = WeightTier::nvme;
  double host_state_share = 0;
  double clip = 0;
};

engine::EngineOptions options_of(const Model& model, const Way& way,
                                 const std::vector<std::shared_ptr<aio::MemoryFolder>>& folders) {
  engine::EngineOptions options;
  PlanRequest& request = options.request;
  request.workload.units = units_of(model);
  for (uint32_t unit = 0; unit < model.units.size(); ++unit) {
    for (size_t i = 0; i < model.units[unit].parameters.size(); ++i) {
      request.workload.units[unit].parameters[i].group = model.units[unit].parameters[i].shape.size() > 1 ? 0 : 1;
    }
  }
  request.workload.uses = uses_of(model);
  request.workload.scope = StepScope::training;
  request.workload.micro_batches = kMicroBatches;
  request.workload.clipping.norm = way.clip;
  request.choices.activations = way.activations;
  request.choices.keep_share = way.keep_share;
  request.choices.offload_host_share = way.offload_host_share;
  request.stores_activations = way.keeping == Keeping::with_engine;
  HostAccelerator accelerator;
  const auto dry = dry_step(model, accelerator, {}, batches_of(1), way.keeping);
  CHECK(dry.ok(), dry.status().message());
  for (size_t use = 0; use < model.uses.size(); ++use) {
    request.workload.uses[use].activation_bytes = dry->uses[use].activation_bytes;
    request.workload.uses[use].boundary_bytes = dry->uses[use].boundary_bytes;
  }
  request.choices.micro_batch_group = way.group;
  request.choices.weights = way.weights;
  request.choices.host_state_share = way.host_state_share;
  request.budgets.host_bytes = 64 * kMiB;
  DriveRates drive;
  drive.burst = MixCurve::flat(4);
  request.machine.drives.assign(folders.size(), drive);
  request.machine.host_gbps = 50;
  if (way.on_device) {
    request.machine.devices = 1;
    request.machine.host_to_device_gbps = request.machine.device_to_host_gbps = 25;
    request.budgets.device_bytes = 16 * kMiB;
    options.device = [](uint64_t arena_bytes) { return test::open_capricious_device(3, arena_bytes); };
  }
  options.update_threads = 2;
  options.drives = [&folders] { return test::drives_in_memory(folders); };
  return options;
}

template <typename T>
std::vector<T> read(engine::Engine& engine, uint32_t unit, Role role, size_t count) {
  std::vector<T> values(count);
  const Status status = engine.read(unit, role, 0, std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

uint64_t words_different(engine::Engine& engine, const std::vector<plain::Unit>& units) {
  uint64_t different = 0;
  for (uint32_t unit = 0; unit < units.size(); ++unit) {
    const plain::Unit& expected = units[unit];
    const size_t n = expected.p.size();
    const auto high = read<uint16_t>(engine, unit, Role::weight, n);
    const auto low = read<uint16_t>(engine, unit, Role::master_low, n);
    const auto m = read<float>(engine, unit, Role::momentum, n);
    const auto v = read<float>(engine, unit, Role::variance, n);
    for (size_t i = 0; i < n; ++i) {
      different += high[i] != expected.high(i) || low[i] != expected.low(i) ||
                   plain::bits(m[i]) != plain::bits(expected.m[i]) || plain::bits(v[i]) != plain::bits(expected.v[i]);
    }
  }
  return different;
}

class EngineTraining : public testing::TestWithParam<std::tuple<SmallModel, Way>> {};

TEST_P(EngineTraining, LeavesTheBitsOfAPlainLoopAndLearns) {
  at::set_num_threads(1);  // tests run beside one another, and a product waits for its slowest thread
  const auto& [small, way] = GetParam();
  const Model model = make_model(config_of(small), Dtype::bf16);
  constexpr uint64_t kSeed = 7, kSteps = 10;
  const std::vector<std::shared_ptr<aio::MemoryFolder>> folders = {std::make_shared<aio::MemoryFolder>("/drive0", 0),
                                                                   std::make_shared<aio::MemoryFolder>("/drive1", 1)};
  const engine::EngineOptions options = options_of(model, way, folders);
  const Status created = engine::Engine::create(options, [&](uint32_t unit, uint64_t first, std::span<float> values) {
    fill_initial_values(model, kSeed, unit, first, values);
    return Status();
  });
  ASSERT_TRUE(created.ok()) << created.message();
  auto opened = engine::Engine::open(options);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  engine::Engine& engine = **opened;
  HostAccelerator accelerator;
  EngineLink link(engine, accelerator);
  const ComputeChoices choices{.seed = kSeed, .head_tokens = 20};
  TrainStep tiered(model, link, choices, engine.plan().activations, way.keeping);

  PlainMemory memory(model, kSeed);
  TrainStep plain_step(model, memory, choices,
                       std::vector<ActivationChoice>(model.uses.size(), ActivationChoice::recompute));
  plain::Settings settings;
  settings.clip = way.clip;
  settings.groups = {{1e-2, 0.9, 0.95, 1e-8, 0.1}, {1e-2, 0.9, 0.95, 1e-8, 0}};

  std::vector<double> losses;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const uint32_t count = step == 4 ? kMicroBatches - 1 : kMicroBatches;  // fewer, as at the end of an epoch
    const std::vector<MicroBatch> batches = batches_of(count);
    ASSERT_TRUE(engine
                    .begin({.groups = {{.lr = 1e-2, .beta2 = 0.95, .weight_decay = 0.1}, {.lr = 1e-2, .beta2 = 0.95}},
                            .micro_batches = count})
                    .ok());
    const Result<StepLoss> loss = tiered.run(step, batches, engine.passes());
    ASSERT_TRUE(loss.ok()) << loss.status().message();
    const Result<engine::StepReport> report = engine.step();
    ASSERT_TRUE(report.ok()) << report.status().message();

    memory.begin();
    const Result<StepLoss> plain_loss = plain_step.run(step, batches, step_order(model, count, 1));
    ASSERT_TRUE(plain_loss.ok()) << plain_loss.status().message();
    memory.end(settings);
    EXPECT_EQ(loss->sum, plain_loss->sum) << "step " << step;
    losses.push_back(loss->mean());
  }
  EXPECT_EQ(words_different(engine, memory.units), 0u);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
}

INSTANTIATE_TEST_SUITE_P(
    Ways, EngineTraining,
    testing::Combine(
        testing::ValuesIn(small_models()),
        testing::Values(
            Way{.name = "OnDrives"}, Way{.name = "KeepingInGroups", .activations = ActivationChoice::keep, .group = 1},
            Way{.name = "WeightsInHost", .group = 2, .weights = WeightTier::host, .clip = 0.5},
            Way{.name = "HalfInHost", .weights = WeightTier::automatic, .host_state_share = 0.5, .clip = 0.5},
            Way{.name = "OffloadingToDrives",
                .activations = ActivationChoice::offload,
                .keeping = Keeping::with_engine,
                .group = 2},
            Way{.name = "OffloadingInputs",
                .activations = ActivationChoice::recompute_offload,
                .keeping = Keeping::with_engine,
                .keep_share = 0.5},
            Way{.name = "OnADevice", .keeping = Keeping::with_engine, .on_device = true, .group = 1, .clip = 0.5},
            Way{.name = "OnADeviceKeeping",
                .activations = ActivationChoice::keep,
                .keeping = Keeping::with_engine,
                .on_device = true,
                .group = 2},
            Way{.name = "OnADeviceOffloading",
                .activations = ActivationChoice::offload,
                .keeping = Keeping::with_engine,
                .keep_share = 0.3,
                .offload_host_share = 0.5,
                .on_device = true,
                .weights = WeightTier::host})),
    [](const auto& of) { return std::get<0>(of.param).name + std::get<1>(of.param).name; });

}  // namespace
}  // namespace penstock::trainer
