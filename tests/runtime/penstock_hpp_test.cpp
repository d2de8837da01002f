// penstock.hpp: what its types add to the functions of penstock.h, and that each verb reaches the one it is named for.
#include "runtime/engine/penstock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

namespace {

using penstock::Options;
using penstock::Parameter;
using penstock::Result;
using penstock::Status;
using penstock::Store;

constexpr uint64_t kLarge = 70'001, kSmall = 48;

class PenstockHpp : public testing::Test {
 protected:
  PenstockHpp() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~PenstockHpp() override { std::filesystem::remove_all(folder_); }

  Options options() const {
    Options options;
    options.drives = {folder_ + "/store"};
    options.host_bytes = 64 << 20;
    options.initial = [](uint32_t parameter, uint64_t first, std::span<float> values) {
      std::iota(values.begin(), values.end(), static_cast<float>(first + parameter));
    };
    return options;
  }
  std::vector<Parameter> parameters() {
    return {{.name = "large", .elements = kLarge, .weights_into = large_.data()},
            {.name = "small", .elements = kSmall, .group = 1, .weights_into = small_.data()}};
  }
  static Status begin(Store& store) {
    penstock_rates rates{};
    rates.lr = 0.5;
    return store.begin(std::vector<penstock_rates>(2, rates));
  }
  // SGD with lr 0.5 takes a half from every weight.
  Status train(Store& store, std::span<const std::byte> state = {}) {
    if (Status begun = begin(store); !begun) return begun;
    if (Status given = store.gradient(0, std::vector<float>(kLarge, 1)); !given) return given;
    if (Status given = store.gradient(1, std::vector<float>(kSmall, 1)); !given) return given;
    return store.step(state).status();
  }
  Store opened(Options options) {
    options.optimizer = PENSTOCK_SGD;
    auto store = Store::open(options, parameters());
    EXPECT_TRUE(store) << store.status().message;
    return std::move(*store);
  }

  std::string folder_ = "./penstock_hpp_XXXXXX";
  std::vector<float> large_ = std::vector<float>(kLarge), small_ = std::vector<float>(kSmall);
};

TEST_F(PenstockHpp, TrainsAndSaysWhatItHas) {
  std::vector<std::string> heard;
  Options wanted = options();
  wanted.log = [&](penstock_level, const char* line) { heard.emplace_back(line); };
  Store store = opened(wanted);
  EXPECT_FALSE(heard.empty());
  EXPECT_EQ(store.id().size(), 32u);
  EXPECT_NE(store.description().find(heard.front()), std::string::npos);
  EXPECT_EQ(store.statistics().elements, kLarge + kSmall);
  const char state[] = "epoch 3";
  ASSERT_TRUE(train(store, std::as_bytes(std::span(state))).ok());
  EXPECT_EQ(store.steps(), 1u);
  EXPECT_EQ(large_[7], 6.5f);
  EXPECT_EQ(small_[7], 7.5f);
  std::vector<float> read(4);
  ASSERT_TRUE(store.read(1, PENSTOCK_WEIGHT, 4, read).ok());
  EXPECT_EQ(read, (std::vector<float>{4.5, 5.5, 6.5, 7.5}));
  ASSERT_TRUE(store.close().ok());
  Store again = opened(options());
  ASSERT_EQ(again.restored_state().size(), sizeof(state));
  EXPECT_STREQ(reinterpret_cast<const char*>(again.restored_state().data()), state);
}

TEST_F(PenstockHpp, RefusesASpanThatIsNotTheParameter) {
  Store store = opened(options());
  ASSERT_TRUE(begin(store).ok());
  for (uint64_t size : {kSmall - 1, kSmall + 1, uint64_t{0}}) {
    const Status refused = store.gradient(1, std::vector<float>(size));
    EXPECT_EQ(refused.code, PENSTOCK_USAGE);
    EXPECT_NE(refused.message.find("of parameter 1, which has 48"), std::string::npos) << refused.message;
  }
  EXPECT_EQ(store.gradient(7, std::vector<float>(3)).code, PENSTOCK_USAGE);
  // In pieces, and as another type.
  ASSERT_TRUE(store.gradient_part(0, 0, std::vector<float>(70'000, 1)).ok());
  ASSERT_TRUE(store.gradient_part(0, 70'000, std::vector<float>(1, 1)).ok());
  const std::vector<uint16_t> ones(kSmall, 0x3f80);
  ASSERT_TRUE(store.gradient(1, PENSTOCK_BF16, std::as_bytes(std::span(ones))).ok());
  ASSERT_TRUE(store.step());
  EXPECT_EQ(small_[7], 7.5f);
  EXPECT_EQ(large_[70'000], 69'999.5f);
}

TEST_F(PenstockHpp, AStoreThatWasMovedFromRefusesAndTheOtherGoesOn) {
  Store first = opened(options());
  Store second = std::move(first);
  EXPECT_EQ(first.settle().message, "engine: NULL");  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(train(second).ok());
  ASSERT_TRUE(second.close().ok());
  EXPECT_EQ(begin(second).code, PENSTOCK_USAGE);
  EXPECT_TRUE(second.close().ok());
}

TEST_F(PenstockHpp, IsStillOpenWhereClosingItWasRefused) {
  Status refused;
  Store* trained = nullptr;
  Options wanted = options();
  wanted.optimizer = PENSTOCK_SGD;
  wanted.clip_norm = 1e9;  // so that weights go out within step()
  std::vector<Parameter> given = parameters();
  given[0].weights_into = nullptr;
  given[1].weights_into = PENSTOCK_WEIGHTS_OUT;
  wanted.weights_out = [&](uint32_t, uint64_t, int, std::span<const std::byte>) {
    if (trained != nullptr && refused.ok()) refused = trained->close();
    return true;
  };
  auto opened = Store::open(wanted, given);
  ASSERT_TRUE(opened) << opened.status().message;
  Store store = std::move(*opened);
  trained = &store;
  ASSERT_TRUE(train(store).ok());
  EXPECT_EQ(refused.code, PENSTOCK_USAGE) << "from within a verb: " << refused.message;
  EXPECT_EQ(store.steps(), 1u);
  EXPECT_TRUE(train(store).ok());
  EXPECT_TRUE(store.close().ok());
  EXPECT_TRUE(Store::open(wanted, given)) << "nobody has it any longer";
}

TEST_F(PenstockHpp, WeightsGoOutWhereverTheStoreIs) {
  std::vector<float> weights(kSmall);
  std::atomic<bool> updated = false;
  auto store = [&] {
    Options wanted = options();
    wanted.optimizer = PENSTOCK_SGD;
    wanted.weights_out = [&](uint32_t, uint64_t first, int dtype, std::span<const std::byte> values) {
      EXPECT_EQ(dtype, PENSTOCK_FP32);
      std::memcpy(weights.data() + first, values.data(), values.size());
      updated = true;
      updated.notify_all();
      return true;
    };
    const std::vector<Parameter> parameters = {
        {.name = "small", .elements = kSmall, .weights_into = PENSTOCK_WEIGHTS_OUT}};
    return Store::open(wanted, parameters);
  }();
  ASSERT_TRUE(store) << store.status().message;
  Store moved = std::move(*store);
  penstock_rates rates{};
  rates.lr = 0.5;
  ASSERT_TRUE(moved.begin({&rates, 1}).ok());
  ASSERT_TRUE(moved.publish().ok());
  ASSERT_TRUE(moved.gradient(0, std::vector<float>(kSmall, 1)).ok());
  updated.wait(false);  // once its gradient is there, the update waits for nothing
  // Another store takes its place, in the middle of a step: what it gave goes out once more, to somebody who is there.
  Options other = options();
  other.drives = {folder_ + "/other"};
  moved = opened(other);
  EXPECT_EQ(weights[7], 7.0f);
  EXPECT_TRUE(train(moved).ok());
}

TEST_F(PenstockHpp, KeepsWritesAdoptsAndCounts) {
  Store store = opened(options());
  ASSERT_TRUE(train(store).ok());
  EXPECT_EQ(*store.keep(), 1u);
  EXPECT_EQ(*store.kept(), std::vector<uint64_t>{1});
  ASSERT_TRUE(store.begin_writes().ok());
  ASSERT_TRUE(store.write(1, PENSTOCK_WEIGHT, 0, std::vector<float>(3, 2)).ok());
  ASSERT_TRUE(store.set_count(1, 9).ok());
  ASSERT_TRUE(store.end_writes().ok());
  EXPECT_EQ(*store.count(1), 9u);
  EXPECT_EQ(*store.adopt(1, 0, std::vector<float>{2, 2, 5}), 1u);
  std::vector<uint16_t> halves(kSmall);
  ASSERT_TRUE(store.set_weights_into(1, PENSTOCK_BF16, halves.data()).ok());
  ASSERT_TRUE(train(store).ok());
  EXPECT_EQ(halves[2], 0x4090);  // 4.5
  ASSERT_TRUE(store.roll_back(1).ok());
  EXPECT_EQ(store.steps(), 1u);
  EXPECT_EQ(*store.count(1), 1u);
  ASSERT_TRUE(store.drop(1).ok());
  EXPECT_TRUE(store.kept()->empty());
  EXPECT_EQ(store.drop(1).code, PENSTOCK_USAGE);
  EXPECT_TRUE(store.settle().ok());
}

// Weights of 16 bits are read by runs of a mebi of elements.
TEST_F(PenstockHpp, FillsArraysOfManyRuns) {
  constexpr uint64_t kElements = (2 << 20) + 777;
  const auto value = [](uint64_t index) { return static_cast<float>(index >> 14); };  // exact in bf16
  Options wanted = options();
  wanted.optimizer = PENSTOCK_SGD;
  wanted.host_bytes = 128 << 20;
  wanted.initial = [&](uint32_t, uint64_t first, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(first + i);
  };
  std::vector<uint16_t> halves(kElements);
  const std::vector<Parameter> one = {
      {.name = "one", .elements = kElements, .dtype = PENSTOCK_BF16, .weights_into = halves.data()}};
  auto store = Store::open(wanted, one);
  ASSERT_TRUE(store) << store.status().message;
  penstock_rates rates{};
  rates.lr = 0.5;
  ASSERT_TRUE(store->begin(std::vector<penstock_rates>(1, rates)).ok());
  ASSERT_TRUE(store->publish().ok());
  ASSERT_TRUE(store->gradient(0, std::vector<float>(kElements, 1)).ok());
  // SGD without momentum keeps the fp32 master alone.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (store->statistics().written_bytes < 4 * kElements && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_GE(store->statistics().written_bytes, 4 * kElements);
  ASSERT_TRUE(store->discard().ok());  // what has been published is taken back
  for (uint64_t i = 0; i < kElements; ++i) {
    const float expected = value(i);
    uint32_t bits = 0;
    std::memcpy(&bits, &expected, sizeof bits);
    ASSERT_EQ(halves[i], bits >> 16) << i;
  }
}

TEST_F(PenstockHpp, LendsWeightsForEvaluation) {
  Options wanted = options();
  wanted.optimizer = PENSTOCK_SGD;
  wanted.whole_steps = true;
  const std::vector<Parameter> parameters = {{.name = "a", .elements = kSmall, .unit = 0},
                                             {.name = "b", .elements = kLarge, .unit = 1}};
  auto store = Store::open(wanted, parameters);
  ASSERT_TRUE(store) << store.status().message;
  EXPECT_EQ(store->weight(0).status().code, PENSTOCK_USAGE);
  ASSERT_TRUE(store->begin_forward().ok());
  for (uint32_t unit : {1u, 0u}) {
    const penstock_pass pass{.unit = unit, .micro_batch = 0, .direction = PENSTOCK_FORWARD};
    ASSERT_TRUE(store->acquire(pass).ok());
    EXPECT_EQ((*store->weight(unit))[5], static_cast<float>(5 + unit));
    ASSERT_TRUE(store->release(pass).ok());
  }
  ASSERT_TRUE(store->end_forward().ok());
  penstock_rates rates{};
  ASSERT_TRUE(store->begin({&rates, 1}).ok());
  EXPECT_EQ(store->passes()->size(), 4u);
  EXPECT_TRUE(store->absent(0).ok());
  EXPECT_TRUE(store->discard().ok());
  EXPECT_EQ(store->steps(), 0u);
}

TEST_F(PenstockHpp, SaysWhatWasRefusedAndWhatToDo) {
  const Result<Store> refused = Store::open(Options(), parameters());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status().code, PENSTOCK_USAGE);
  EXPECT_EQ(refused.status().message, "open: no drives");
  EXPECT_EQ(refused.status().remedy, "name a folder on a drive");
}

}  // namespace
