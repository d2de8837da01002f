// Where state, weights, gradients and activations lie changes no bit of a training run: every placement against the one
// plain loop, with dropout, a tied head, a frozen block, accumulation, evaluation in between, and steps that are
// clipped or skipped. PENSTOCK_VERIFIED_STEPS: how many steps, and then in every group of micro-batches.
#include "tools/train/placements.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/trainer/files/file_io.h"
#include "runtime/trainer/torch/dry_step.h"
#include "runtime/trainer/torch/training_device.h"
#include "tests/support/capricious_device.h"
#include "tests/support/memory_drives.h"
#include "tools/train/plain_training.h"
#include "tools/train/tiered_steps.h"

namespace penstock::tools {
namespace {

struct Course {
  const char* name;
  const char* keys;  // of the config
};

constexpr Course kCourses[] = {
    {"Clipped", R"("gradient_clipping": 1.5)"},
    {"Skipped", R"("precision": "fp16", "fp16": {"initial_scale_power": 24, "hysteresis": 1})"},
};

uint64_t asked_steps() {
  const char* asked = std::getenv("PENSTOCK_VERIFIED_STEPS");
  return asked == nullptr ? 0 : std::strtoull(asked, nullptr, 10);
}

class Placements : public testing::TestWithParam<Course> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // tests run beside one another, and a product waits for its slowest thread
    folder_ = std::filesystem::current_path() / text("placements_", getpid());
    std::filesystem::create_directories(folder_);
    const std::string model = folder_ / "tiny.json";
    ASSERT_TRUE(trainer::write_small_file(model, R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 128, "n_layer": 3,
        "n_head": 2, "vocab_size": 257, "n_positions": 16, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})")
                    .ok());
    auto config = trainer::parse_config(
        text(R"({"model": ")", model, R"(", "max_steps": 100, "sequence_length": 8, "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 3, "held_out_share": 0.2, "eval_every": 2, "eval_batches": 2, "seed": 5,
        "parameters": [{"pattern": "h.1.", "frozen": true}],
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}}, )",
             GetParam().keys, R"(, "penstock": {"host_budget": "2GiB", "threads": 2, "stores": [")", folder_.string(),
             R"("]}})"));
    ASSERT_TRUE(config.ok()) << config.status().message();
    auto settings = settings_of(*config, std::nullopt);
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    settings_ = std::make_unique<TrainingSettings>(std::move(*settings));
    ASSERT_TRUE(measure_step(*settings_).ok());
    settings_->tensor_bytes = 0;  // other tests of the program may have left tensors
    settings_->engine.drives = [this] { return test::drives_in_memory({drive_}); };
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::filesystem::path folder_;
  std::unique_ptr<TrainingSettings> settings_;
  std::shared_ptr<aio::MemoryFolder> drive_ = std::make_shared<aio::MemoryFolder>("/drive", 0);
};

TEST_P(Placements, LeaveTheBitsOfAPlainLoop) {
  const uint64_t steps = asked_steps() > 0 ? asked_steps() : 4;
  auto plain = PlainTraining::make(*settings_);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  std::vector<double> losses;
  while (losses.size() < steps) losses.push_back(*(*plain)->step());

  const std::vector<GridCase> placements = all_placements(3);
  uint64_t struck = 0, skipped = 0;
  for (size_t i = 0; i < placements.size(); ++i) {
    // Each placement and choice of activations comes in three groups, most in place and on a device: one of six.
    const size_t way = i % 6, pair = i / 6;
    if (asked_steps() == 0 && way != (pair + pair / 6) % 6) continue;
    SCOPED_TRACE(placements[i].name);
    TrainingSettings here = placed(*settings_, placements[i]);
    if (placements[i].on_device) {
      here.engine.device = [i](uint64_t arena_bytes) { return test::open_capricious_device(i, arena_bytes); };
    }
    const Result<TieredSteps> tiered = take_tiered_steps(here, steps, no_tick);
    ASSERT_TRUE(tiered.ok()) << tiered.status().message();
    EXPECT_EQ(tiered->losses, losses);
    const Result<Comparison> comparison = (*plain)->compare(tiered->run->engine());
    ASSERT_TRUE(comparison.ok()) << comparison.status().message();
    ASSERT_EQ(comparison->words_different, 0u);
    EXPECT_EQ(tiered->run->engine().plan().micro_batch_group, placements[i].choices.micro_batch_group);
    struck += tiered->struck, skipped += tiered->skipped;
  }
  EXPECT_GT(settings_->config.precision == Dtype::fp16 ? skipped : struck, 0u);
  EXPECT_NE(losses.back(), losses.front());
}

INSTANTIATE_TEST_SUITE_P(Courses, Placements, testing::ValuesIn(kCourses),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace penstock::tools
