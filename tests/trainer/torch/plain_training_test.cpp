// What `penstock verify` compares with: a plain loop that takes the same steps, and a comparison that names a single
// word that differs.
#include "tools/train/plain_training.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "runtime/trainer/files/file_io.h"
#include "runtime/trainer/torch/training_run.h"
#include "tools/train/store_of_run.h"

namespace penstock::tools {
namespace {

// Beside the build: /tmp may be a tmpfs, where no store can be.
class ScratchStore {
 public:
  ScratchStore() : folder_(std::filesystem::current_path() / ("plain_training_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_ / "store");
  }
  ~ScratchStore() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const char* name) const { return folder_ / name; }

 private:
  const std::filesystem::path folder_;
};

Result<TrainingSettings> small_settings(const ScratchStore& scratch) {
  const std::string model = scratch.path("tiny.json");
  trainer::write_small_file(model, R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4,
      "vocab_size": 257, "n_positions": 64})")
      .ok();
  PENSTOCK_TRY_ASSIGN(
      config, trainer::parse_config(text(R"({"max_steps": 3, "sequence_length": 16, "train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 2, "parameters": [{"pattern": "h.1.", "frozen": true}],
      "penstock": {"host_budget": "2GiB", "stores": [")",
                                         scratch.path("store"), R"("]}})")));
  PENSTOCK_TRY_ASSIGN(settings, settings_of(config, std::nullopt));
  PENSTOCK_TRY(make_store(settings, aio::CreateOptions::Existing::refuse, no_tick));
  return settings;
}

TEST(PlainTraining, TakesTheSameStepsAndNamesAWordThatDiffers) {
  at::set_num_threads(1);
  const ScratchStore scratch;
  auto settings = small_settings(scratch);
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  auto run = trainer::TrainingRun::open(*settings);
  ASSERT_TRUE(run.ok()) << run.status().message();
  auto plain = PlainTraining::make(*settings);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  for (int step = 0; step < 3; ++step) {
    const auto tiered = (*run)->step();
    const auto loss = (*plain)->step();
    ASSERT_TRUE(tiered.ok() && loss.ok()) << tiered.status().message() << loss.status().message();
    EXPECT_EQ(tiered->loss, *loss);
  }
  auto comparison = (*plain)->compare((*run)->engine());
  ASSERT_TRUE(comparison.ok()) << comparison.status().message();
  EXPECT_EQ(comparison->words_different, 0u);
  // Four words of each trained element, one of each frozen one.
  uint64_t words = 0;
  for (const trainer::ModelUnit& unit : settings->model.units) words += unit.elements * (unit.trainable() ? 4 : 1);
  EXPECT_EQ(comparison->words_compared, words);

  // The last bit of one variance: of element 5 of block 0's second parameter.
  const trainer::ModelParameter& parameter = settings->model.units[1].parameters[1];
  run->reset();
  {
    auto engine = engine::Engine::open(settings->engine);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    float value = 0;
    auto bytes = std::as_writable_bytes(std::span(&value, 1));
    ASSERT_TRUE((*engine)->read(1, Role::variance, parameter.first_element + 5, bytes).ok());
    uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    bits ^= 1;
    std::memcpy(&value, &bits, 4);
    ASSERT_TRUE((*engine)->write(1, Role::variance, parameter.first_element + 5, bytes).ok());
  }
  run = trainer::TrainingRun::open(*settings);
  ASSERT_TRUE(run.ok()) << run.status().message();
  comparison = (*plain)->compare((*run)->engine());
  ASSERT_TRUE(comparison.ok());
  EXPECT_EQ(comparison->words_different, 1u);
  ASSERT_TRUE(comparison->first);
  EXPECT_EQ(comparison->first->tensor, parameter.name + " variance");
  EXPECT_EQ(comparison->first->index, 5u);
  EXPECT_EQ(comparison->first->tiered ^ comparison->first->plain, 1u);
  // A step too few is seen as well.
  ASSERT_TRUE((*plain)->step().ok());
  comparison = (*plain)->compare((*run)->engine());
  ASSERT_TRUE(comparison.ok());
  EXPECT_GT(comparison->words_different, 10'000u);
}

}  // namespace
}  // namespace penstock::tools
