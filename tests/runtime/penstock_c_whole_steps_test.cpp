// penstock.h: weights that are lent for whole steps, by one process and by ranks that share them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "aio/store/tile_store.h"
#include "tests/runtime/penstock_program.h"

namespace penstock::engine {
namespace {

// One parameter each, in a unit of its own.
std::vector<penstock_parameter> layers(uint32_t count, uint64_t elements) {
  std::vector<penstock_parameter> all;
  for (uint32_t layer = 0; layer < count; ++layer) {
    all.push_back({.name = "w",
                   .elements = elements,
                   .group = 0,
                   .dtype = PENSTOCK_FP32,
                   .initial = nullptr,
                   .weights_into = nullptr,
                   .unit = layer});
  }
  return all;
}

// y = w * x, one unit a layer, with the weights in the tiers.
TEST(PenstockC, LendsTheWeightsOfWholeSteps) {
  ProgramFolder folder;
  constexpr uint64_t kElements = 70'000;
  constexpr uint32_t kLayers = 3;
  const char* drives[] = {folder.path.c_str()};
  std::vector<penstock_parameter> parameters = layers(kLayers, kElements);
  penstock_options options = {};
  options.size = sizeof(options);
  options.drives = drives;
  options.drive_count = 1;
  options.host_bytes = 64 << 20;
  options.whole_steps = 1;
  options.micro_batches = 2;
  options.initial = [](void*, uint32_t parameter, uint64_t first, uint64_t count, float* values) {
    for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(parameter + 1) + static_cast<float>(first + i);
    return 0;
  };
  penstock_engine* engine = nullptr;
  options.optimizer = PENSTOCK_SGD;
  ASSERT_EQ(penstock_open(&options, parameters.data(), kLayers, &engine), 0) << penstock_message();
  penstock_rates rates = {};
  rates.lr = 1;
  const std::vector<float> ones(kElements, 1.0f);
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(penstock_begin(engine, &rates, 1, 2, 1), 0) << penstock_message();
    penstock_pass passes[4 * kLayers];
    size_t count = 0;
    ASSERT_EQ(penstock_passes(engine, passes, 4 * kLayers, &count), 0);
    ASSERT_EQ(count, 4 * kLayers);
    for (const penstock_pass& pass : passes) {
      const float* values = nullptr;
      EXPECT_EQ(penstock_weight(engine, pass.unit, &values), PENSTOCK_USAGE);
      ASSERT_EQ(penstock_acquire(engine, &pass), 0) << penstock_message();
      ASSERT_EQ(penstock_weight(engine, pass.unit, &values), 0) << penstock_message();
      // Each step takes the two micro-batches' gradients of 1 from every weight.
      EXPECT_EQ(values[kElements - 1],
                static_cast<float>(pass.unit + 1 + kElements - 1) - 2.0f * static_cast<float>(step));
      if (pass.direction == PENSTOCK_BACKWARD) {
        ASSERT_EQ(penstock_gradient(engine, pass.unit, pass.micro_batch, PENSTOCK_FP32, ones.data()), 0)
            << penstock_message();
      }
      ASSERT_EQ(penstock_release(engine, &pass), 0) << penstock_message();
    }
    ASSERT_EQ(penstock_step(engine, nullptr, 0, nullptr), 0) << penstock_message();
    // Evaluation, in an order of its own.
    ASSERT_EQ(penstock_begin_forward(engine), 0) << penstock_message();
    EXPECT_EQ(penstock_begin(engine, &rates, 1, 2, 1), PENSTOCK_USAGE);
    for (const uint32_t unit : {2u, 0u, 2u, 1u}) {
      const penstock_pass pass = {unit, 0, PENSTOCK_FORWARD};
      const penstock_pass back = {unit, 0, PENSTOCK_BACKWARD};
      EXPECT_EQ(penstock_acquire(engine, &back), PENSTOCK_USAGE);
      ASSERT_EQ(penstock_acquire(engine, &pass), 0) << penstock_message();
      const float* values = nullptr;
      ASSERT_EQ(penstock_weight(engine, unit, &values), 0) << penstock_message();
      EXPECT_EQ(values[kElements - 1], static_cast<float>(unit + kElements) - 2.0f * static_cast<float>(step + 1));
      ASSERT_EQ(penstock_release(engine, &pass), 0) << penstock_message();
    }
    ASSERT_EQ(penstock_end_forward(engine), 0) << penstock_message();
    EXPECT_EQ(penstock_end_forward(engine), PENSTOCK_USAGE);
  }
  EXPECT_EQ(penstock_close(engine), 0) << penstock_message();
}

// Two layers whose weights every step lowers by one for each rank.
struct LoweredModel {
  static constexpr uint64_t kElements = 70'000;  // cut among the ranks
  static constexpr uint32_t kLayers = 2;

  explicit LoweredModel(std::string in) : folder(std::move(in)), drives{folder.c_str()} {
    options.size = sizeof(options);
    options.drives = drives;
    options.drive_count = 1;
    options.host_bytes = 64 << 20;
    options.threads = 1;
    options.whole_steps = 1;
    options.optimizer = PENSTOCK_SGD;
    options.ranks_of_environment = 1;
    options.initial = [](void*, uint32_t, uint64_t first, uint64_t count, float* values) {
      for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(first + i);
      return 0;
    };
  }
  int open() { return penstock_open(&options, parameters.data(), kLayers, &engine); }

  // Empty, or what is wrong.
  std::string step() const {
    penstock_rates rates = {};
    rates.lr = 1;
    const std::vector<float> ones(kElements, 1.0f);
    penstock_pass passes[2 * kLayers];
    size_t count = 0;
    uint64_t steps = 0;
    if (penstock_steps(engine, &steps) != 0 || penstock_begin(engine, &rates, 1, 1, 1) != 0 ||
        penstock_passes(engine, passes, 2 * kLayers, &count) != 0 || count != 2 * kLayers)
      return penstock_message();
    for (const penstock_pass& pass : passes) {
      const float* values = nullptr;
      if (penstock_acquire(engine, &pass) != 0 || penstock_weight(engine, pass.unit, &values) != 0)
        return penstock_message();
      if (const float last = values[kElements - 1]; last != expected(steps)) return text("lent ", last);
      if (pass.direction == PENSTOCK_BACKWARD &&
          penstock_gradient(engine, pass.unit, 0, PENSTOCK_FP32, ones.data()) != 0)
        return penstock_message();
      if (penstock_release(engine, &pass) != 0) return penstock_message();
    }
    return penstock_step(engine, nullptr, 0, nullptr) == 0 ? "" : penstock_message();
  }
  static float expected(uint64_t steps) { return static_cast<float>(kElements - 1) - 2.0f * static_cast<float>(steps); }
  std::string look_at(uint64_t steps) const {
    uint64_t found = 0;
    float last = 0;
    if (penstock_steps(engine, &found) != 0 || found != steps) return text("step ", found);
    if (penstock_read(engine, 1, PENSTOCK_WEIGHT, kElements - 1, 1, PENSTOCK_FP32, &last) != 0)
      return penstock_message();
    return last == expected(steps) ? "" : text("read ", last);
  }

  const std::string folder;
  const char* drives[1];
  std::vector<penstock_parameter> parameters = layers(kLayers, kElements);
  penstock_options options = {};
  penstock_engine* engine = nullptr;
};

std::string life_of_rank(LoweredModel& model, uint64_t begins_at) {
  uint32_t rank = 9, ranks = 9;
  uint64_t kept = 0, count = 0;
  if (model.open() != 0 || penstock_rank(model.engine, &rank, &ranks) != 0) return penstock_message();
  if (text(rank) != std::getenv("RANK") || ranks != 2) return text("rank ", rank, " of ", ranks);
  if (std::string wrong = model.look_at(begins_at); !wrong.empty()) return wrong;
  if (std::string wrong = model.step(); !wrong.empty()) return wrong;
  if (penstock_keep(model.engine, &kept) != 0 || kept != begins_at + 1) return text("kept ", kept, penstock_message());
  if (std::string wrong = model.step(); !wrong.empty()) return wrong;
  if (std::string wrong = model.look_at(begins_at + 2); !wrong.empty()) return wrong;
  if (penstock_count(model.engine, 0, &count) != PENSTOCK_USAGE) return "count is not refused";
  if (penstock_roll_back(model.engine, kept) != 0) return penstock_message();
  if (std::string wrong = model.look_at(kept); !wrong.empty()) return wrong;
  if (std::string wrong = model.step(); !wrong.empty()) return wrong;
  return penstock_close(model.engine) == 0 ? "" : penstock_message();
}

constexpr const char* kLives = "PenstockC.SharesWholeStepsAmongRanksThatKeepAndGoBackTogether";
constexpr const char* kRefusals = "PenstockC.RefusesRanksOfWhichOneHasItsStoreAndTheOtherNone";

// Each is this program anew, as torchrun starts it: what is forked alone has none of its parent's update threads.
void expect_lives_of_two_ranks(const ProgramFolder& folder, int sharing, uint64_t begins_at,
                               const char* lives = kLives) {
  static int meetings = 0;
  ::setenv("LIFE_IN", folder.path.c_str(), 1);
  ::setenv("LIFE_SHARING", std::to_string(sharing).c_str(), 1);
  ::setenv("LIFE_BEGINS_AT", std::to_string(begins_at).c_str(), 1);
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(20'000 + (::getpid() + ++meetings) % 20'000).c_str(), 1);
  const std::string filter = text("--gtest_filter=", lives);
  pid_t processes[2];
  for (int rank = 0; rank < 2; ++rank) {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    processes[rank] = ::fork();
    ASSERT_GE(processes[rank], 0);
    if (processes[rank] > 0) continue;
    ::execl("/proc/self/exe", "rank", filter.c_str(), "--gtest_brief=1", nullptr);
    ::_exit(127);
  }
  for (const char* variable :
       {"LIFE_IN", "LIFE_SHARING", "LIFE_BEGINS_AT", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK"})
    ::unsetenv(variable);
  for (pid_t process : processes) {
    int status = 0;
    EXPECT_EQ(::waitpid(process, &status, 0), process);
    EXPECT_EQ(status, 0);
  }
}

TEST(PenstockC, SharesWholeStepsAmongRanksThatKeepAndGoBackTogether) {
  if (const char* place = std::getenv("LIFE_IN")) {
    LoweredModel model(place);
    model.options.sharing = std::stoi(std::getenv("LIFE_SHARING"));
    EXPECT_EQ(life_of_rank(model, std::stoull(std::getenv("LIFE_BEGINS_AT"))), "") << "rank " << std::getenv("RANK");
    return;
  }
  for (const int sharing : {PENSTOCK_SHARE_WEIGHTS, PENSTOCK_SHARE_STATE, PENSTOCK_SHARE_NOTHING}) {
    SCOPED_TRACE(text("sharing ", sharing));
    ProgramFolder folder;
    expect_lives_of_two_ranks(folder, sharing, 0);
    // The two that share the state have the same shards.
    expect_lives_of_two_ranks(folder, sharing == PENSTOCK_SHARE_WEIGHTS ? PENSTOCK_SHARE_STATE : sharing, 2);
  }
}

TEST(PenstockC, RefusesRanksOfWhichOneHasItsStoreAndTheOtherNone) {
  if (const char* place = std::getenv("LIFE_IN")) {
    LoweredModel model(place);
    EXPECT_NE(model.open(), 0);
    EXPECT_NE(std::string(penstock_message()).find("whether its store is there"), std::string::npos)
        << penstock_message();
    return;
  }
  ProgramFolder folder;
  expect_lives_of_two_ranks(folder, PENSTOCK_SHARE_WEIGHTS, 0);
  ASSERT_TRUE(std::filesystem::remove(folder.path + "/" + aio::store_file_name(1)));
  expect_lives_of_two_ranks(folder, PENSTOCK_SHARE_WEIGHTS, 0, kRefusals);
}

TEST(PenstockC, RefusesWhatSeveralRanksCannotDoBeforeItWaitsForThem) {
  ProgramFolder folder;
  LoweredModel model(folder.path);
  const auto refused = [&](const std::string& words) {
    EXPECT_EQ(model.open(), PENSTOCK_USAGE);
    EXPECT_NE(std::string(penstock_message()).find(words), std::string::npos) << penstock_message();
  };
  ::setenv("RANK", "1", 1);
  refused("WORLD_SIZE is not set");
  ::setenv("WORLD_SIZE", "2", 1);
  refused("MASTER_PORT is not set");
  ::setenv("MASTER_PORT", "29500", 1);
  model.options.whole_steps = 0;
  model.parameters[0].unit = model.parameters[1].unit = PENSTOCK_UNIT_AUTO;
  refused("open: rank 1 of 2: several ranks need whole steps");
  model.options.whole_steps = 1;
  model.parameters[0].unit = 0;
  model.parameters[1].unit = 1;
  std::vector<float> weights(LoweredModel::kElements);
  model.parameters[1].weights_into = weights.data();
  refused("parameter w: weights_into");
  model.parameters[1].weights_into = nullptr;
  model.options.slots = 1;
  refused("ranks: one slot a tile");
  model.options.slots = 0;
  model.options.sharing = 3;
  refused("sharing: 3: from 0 to 2 expected");
  model.options.sharing = 0;
  model.options.hangs_after_s = -1;
  refused("hangs_after_s: -1: from 0 to 600 expected");
  model.options.hangs_after_s = 0;
  for (const char* variable : {"RANK", "WORLD_SIZE", "MASTER_PORT"}) ::unsetenv(variable);
  // Where nobody says that there are others, it is alone.
  ASSERT_EQ(model.open(), 0) << penstock_message();
  uint32_t rank = 9, ranks = 9;
  EXPECT_EQ(penstock_rank(model.engine, &rank, &ranks), 0);
  EXPECT_EQ(std::pair(rank, ranks), std::pair(0u, 1u));
  EXPECT_EQ(penstock_close(model.engine), 0) << penstock_message();
}

}  // namespace
}  // namespace penstock::engine
