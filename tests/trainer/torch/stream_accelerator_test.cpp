// What a GPU would do to a training step, without one: tensors lie on a device of LibTorch's whose streams take their
// time, by a seed, and the engine's copies do as well. Whatever is read before the stream has come to it is noise; and
// whatever is read or written without an order between the streams is told, though it should come out well.
#include "runtime/trainer/torch/stream_accelerator.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/trainer/files/file_io.h"
#include "runtime/trainer/torch/cuda_accelerator.h"
#include "runtime/trainer/torch/tensors.h"
#include "runtime/trainer/torch/training_device.h"
#include "tests/support/memory_drives.h"
#include "tests/support/ordered_device.h"
#include "tests/trainer/torch/stream_device.h"
#include "tools/train/placements.h"
#include "tools/train/plain_training.h"
#include "tools/train/store_of_run.h"
#include "tools/train/tiered_steps.h"

namespace penstock::tools {
namespace {

using Kind = trainer::ComputeDevice::Kind;

class TestAccelerator final : public trainer::StreamAccelerator {
 public:
  static std::shared_ptr<TestAccelerator> open(uint64_t seed) {
    auto stream = take_stream(test::stream_device(seed));
    CHECK(stream.ok(), stream.status().message());
    return std::shared_ptr<TestAccelerator>(new TestAccelerator(*std::move(stream)));
  }

  void limit_tensors(uint64_t bytes) override { limit_bytes = bytes; }
  uint64_t free_bytes() const override { return 4 * kGiB; }
  std::string description() const override { return "a device of the tests"; }

  uint64_t limit_bytes = kNoLimit;

 private:
  explicit TestAccelerator(std::shared_ptr<OwnStream> stream) : StreamAccelerator(std::move(stream)) {}
};

uint64_t seed_of_test() {
  const char* asked = std::getenv("PENSTOCK_SEED");
  return asked == nullptr ? 20261123 : std::strtoull(asked, nullptr, 10);
}

// The engine's device, on LibTorch's streams.
Result<std::unique_ptr<Device>> open_device(uint64_t seed, uint64_t arena_bytes) {
  return test::open_ordered_device(test::stream_device_order(), seed, arena_bytes);
}

void expect_ordered() {
  for (const std::string& failure : test::stream_device_order().take_failures()) ADD_FAILURE() << failure;
}

struct Course {
  const char* name;
  const char* model;
  const char* keys;  // of the config
};

constexpr Course kCourses[] = {
    {"Gpt2",
     R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 257,
         "n_positions": 16, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})",
     R"("head_tokens": 10, "gradient_clipping": 1.5)"},
};

class OnAStream : public testing::TestWithParam<Course> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    folder_ = std::filesystem::current_path() / text("on_a_stream_", getpid());
    std::filesystem::create_directories(folder_);
    const std::string model = folder_ / "tiny.json";
    ASSERT_TRUE(trainer::write_small_file(model, GetParam().model).ok());
    auto config = trainer::parse_config(
        text(R"({"model": ")", model, R"(", "max_steps": 100, "sequence_length": 8, "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2, "held_out_share": 0.2, "eval_every": 2, "eval_batches": 2, "seed": 5,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}}, )",
             GetParam().keys, R"(, "penstock": {"host_budget": "2GiB", "threads": 2, "device": "cuda", "stores": [")",
             folder_.string(), R"("]}})"));
    ASSERT_TRUE(config.ok()) << config.status().message();
    auto settings = settings_of(*config, std::nullopt, {}, [](int) { return Status(); });
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    settings_ = std::make_unique<TrainingSettings>(std::move(*settings));
    ASSERT_EQ(settings_->device.kind, Kind::cuda);
    settings_->accelerator = accelerator_ = TestAccelerator::open(seed_);
    settings_->config.device_budget = "1GiB";
    settings_->engine.request.budgets.device_bytes = kGiB;
    ASSERT_TRUE(give_budget(*settings_).ok());
    compute_on({}, *settings_);
    const Status measured = measure_step(*settings_);
    ASSERT_TRUE(measured.ok()) << measured.message();
    settings_->engine.drives = [this] { return test::drives_in_memory({drive_}); };
  }
  void TearDown() override {
    expect_ordered();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  const uint64_t seed_ = seed_of_test();
  std::filesystem::path folder_;
  std::shared_ptr<TestAccelerator> accelerator_;
  std::unique_ptr<TrainingSettings> settings_;
  std::shared_ptr<aio::MemoryFolder> drive_ = std::make_shared<aio::MemoryFolder>("/drive", 0);
};

TEST_P(OnAStream, EveryPlacementLeavesTheBitsOfAPlainLoopOnTheSameDevice) {
  SCOPED_TRACE(text("PENSTOCK_SEED=", seed_));
  constexpr uint64_t kSteps = 2;
  auto plain = PlainTraining::make(*settings_);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  std::vector<double> losses;
  while (losses.size() < kSteps) {
    const auto loss = (*plain)->step();
    ASSERT_TRUE(loss.ok()) << loss.status().message();
    losses.push_back(*loss);
  }
  const std::vector<GridCase> placements = all_placements(2, Kind::cuda);
  for (size_t i = 0; i < placements.size(); i += 17) {
    SCOPED_TRACE(placements[i].name);
    ASSERT_TRUE(placements[i].on_device);
    TrainingSettings here = placed(*settings_, placements[i]);
    here.engine.device = [&](uint64_t arena_bytes) { return open_device(seed_ + i, arena_bytes); };
    const uint64_t judged = test::stream_device_order().accesses();
    const Result<TieredSteps> tiered = take_tiered_steps(here, kSteps, no_tick);
    expect_ordered();
    if (HasFailure()) return;
    EXPECT_GT(test::stream_device_order().accesses(), judged + 1000);
    ASSERT_TRUE(tiered.ok()) << tiered.status().message();
    EXPECT_EQ(tiered->losses, losses);
    const Result<Comparison> comparison = (*plain)->compare(tiered->run->engine());
    ASSERT_TRUE(comparison.ok()) << comparison.status().message();
    ASSERT_EQ(comparison->words_different, 0u);
  }
  EXPECT_NE(losses.back(), losses.front());
}

// The engine's arena and LibTorch's share are the budget, and LibTorch is held to its share.
TEST_P(OnAStream, TheBudgetIsDividedBetweenArenaAndTensors) {
  const Budgets& budgets = settings_->engine.request.budgets;
  EXPECT_EQ(budgets.device_bytes + settings_->tensor_bytes, kGiB);
  EXPECT_EQ(settings_->engine.request.machine.device_bytes, budgets.device_bytes);
  EXPECT_GT(settings_->tensor_bytes, 64 * kMiB);
  settings_->engine.device = [&](uint64_t arena_bytes) { return open_device(seed_, arena_bytes); };
  ASSERT_TRUE(make_store(*settings_, aio::CreateOptions::Existing::replace, no_tick).ok());
  auto run = trainer::TrainingRun::open(*settings_);
  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(accelerator_->limit_bytes, settings_->tensor_bytes);
  accelerator_->restart_tensor_peak();
  ASSERT_TRUE((*run)->step().ok());
  EXPECT_LE(accelerator_->tensor_bytes().peak, settings_->tensor_bytes);
  run->reset();
  EXPECT_EQ(accelerator_->limit_bytes, trainer::Accelerator::kNoLimit);
}

TEST_P(OnAStream, ABudgetThatIsNotThereIsRefusedWithWhatThereIs) {
  settings_->engine.request.budgets.device_bytes = 5 * kGiB;
  const Status refused = give_budget(*settings_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.message(), "config: penstock.device_budget: 5.00 GiB: a device of the tests has 4.00 GiB free");
  settings_->engine.request.budgets.device_bytes = kMiB;
  ASSERT_TRUE(give_budget(*settings_).ok());
  const Status small = measure_step(*settings_);
  ASSERT_FALSE(small.ok());
  EXPECT_NE(small.message().find("tensors of a step need"), std::string::npos) << small.message();
  // Nothing said: nearly all.
  settings_->config.device_budget = "";
  ASSERT_TRUE(give_budget(*settings_).ok());
  EXPECT_EQ(settings_->device_bytes, 4 * kGiB - 512 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(Courses, OnAStream, testing::ValuesIn(kCourses), [](const auto& of) { return of.param.name; });

TEST(StreamAccelerator, OrdersItsCopiesWithWhatIsComputed) {
  const auto accelerator = TestAccelerator::open(3);
  const at::Device device = accelerator->device();
  ASSERT_NE(accelerator->stream().handle, nullptr);
  for (int round = 0; round < 20; ++round) {
    const at::Tensor host = at::randn({1000});
    at::Tensor x = host.to(device, /*non_blocking=*/true), y = (x * 2).add_(1), z = y.clone();
    ASSERT_TRUE(accelerator->copy(trainer::bytes_of(z), trainer::bytes_of(std::as_const(x))).ok());
    x.zero_();
    y.reset();
    EXPECT_TRUE(at::equal(z.to(at::kCPU), host));
  }
}

// The measure of the tests above: what is read past the stream is noise.
TEST(StreamDevice, ShowsWhoDoesNotWait) {
  const auto accelerator = TestAccelerator::open(4);
  uint64_t early = 0;
  for (int round = 0; round < 200; ++round) {
    const at::Tensor host = at::randn({1000}), x = host.to(accelerator->device(), /*non_blocking=*/true);
    early += std::memcmp(x.const_data_ptr(), host.const_data_ptr(), 4000) != 0;
    EXPECT_TRUE(at::equal(x.to(at::kCPU), host));
  }
  EXPECT_GT(early, 20u);
}

TEST(CudaAccelerator, SaysWhyThereIsNone) {
  const Status usable = trainer::cuda_usable(0);
  if (usable.ok()) GTEST_SKIP() << "there is a GPU, and LibTorch has CUDA";
  EXPECT_FALSE(usable.remedy().empty());
  const auto opened = trainer::open_cuda_accelerator({});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().message(), usable.message());
}

}  // namespace
}  // namespace penstock::tools
