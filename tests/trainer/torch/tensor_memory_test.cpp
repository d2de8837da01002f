#include "runtime/trainer/torch/tensor_memory.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <vector>

#include "runtime/trainer/torch/refusals.h"
#include "tiering/buffer.h"

namespace penstock::trainer {
namespace {

at::Tensor of_bytes(uint64_t bytes) { return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte)); }

// Other tests of the program compute in the same memory, one after another.
class OneTensorMemory : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(memory_.installed()); }
  void TearDown() override { memory_.set_limit(TensorMemory::kNoLimit); }

  TensorMemory& memory_ = TensorMemory::get();
  const uint64_t before_ = memory_.live_bytes();
};

TEST_F(OneTensorMemory, CountsWhatIsLiveAndItsPeak) {
  memory_.reset_peak();
  {
    const at::Tensor a = of_bytes(kMiB);
    {
      const at::Tensor b = of_bytes(3 * kMiB), view = b.narrow(0, 5, 9), none = of_bytes(0);
      EXPECT_EQ(memory_.live_bytes(), before_ + 4 * kMiB);
    }
    const at::Tensor small = of_bytes(TensorMemory::kSmallBytes - 1);
    EXPECT_EQ(memory_.live_bytes(), before_ + kMiB) << "small ones are not counted";
    const at::Tensor c = of_bytes(kMiB + 1);
    EXPECT_EQ(memory_.live_bytes(), before_ + 2 * kMiB + 4096) << "whole pages are";
  }
  EXPECT_EQ(memory_.live_bytes(), before_);
  EXPECT_EQ(memory_.peak_bytes(), before_ + 4 * kMiB);
}

TEST_F(OneTensorMemory, RefusesWhatWouldLieBeyondTheLimitAndGoesOn) {
  memory_.give_back();
  const at::Tensor first = at::ones({1 << 20});
  memory_.set_limit(memory_.live_bytes() + 2 * kMiB);
  const Status refused = without_exceptions(nullptr, [] {
    const at::Tensor all[] = {of_bytes(kMiB), of_bytes(2 * kMiB)};
    return Status();
  });
  EXPECT_EQ(refused.code(), Code::kDoesNotFit);
  EXPECT_NE(refused.message().find("tensors: 2097152 B more than the "), std::string::npos) << refused.message();
  const at::Tensor again = of_bytes(2 * kMiB);
  EXPECT_EQ(memory_.live_bytes(), before_ + 6 * kMiB) << "what was there was freed";
  EXPECT_EQ(first.sum().item<float>(), 1 << 20);
}

uint64_t bytes_in_memory(const void* begin, uint64_t bytes) {
  std::vector<unsigned char> pages(bytes / 4096);
  EXPECT_EQ(mincore(const_cast<void*>(begin), bytes, pages.data()), 0);
  return 4096 * static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(), [](int page) { return page & 1; }));
}

// Every other is freed: what is free is enough in all, but not in one place.
TEST_F(OneTensorMemory, GivesHolesBackRatherThanRefuseWhatIsWithinTheLimit) {
  constexpr uint64_t kCount = 16, kEach = 2 * kMiB, kAll = kCount * kEach;
  memory_.give_back();
  // What lies in holes that earlier tests have left is not looked at.
  std::vector<at::Tensor> held, below;
  uint64_t touched = 0;
  do {
    touched = memory_.touched_bytes();
    below.push_back(of_bytes(kEach));
  } while (memory_.touched_bytes() == touched);
  for (uint64_t i = 0; i < kCount; ++i) held.push_back(of_bytes(kEach).fill_(1));
  const auto* const first = static_cast<const std::byte*>(held.front().const_data_ptr());
  ASSERT_EQ(static_cast<const std::byte*>(held.back().const_data_ptr()), first + kAll - kEach);
  for (uint64_t i = 0; i < kCount; i += 2) held[i].reset();
  memory_.set_limit(memory_.touched_bytes());
  {
    const at::Tensor large = of_bytes(8 * kMiB).fill_(1);
    EXPECT_GE(static_cast<const std::byte*>(large.const_data_ptr()), first + kAll);
    EXPECT_EQ(bytes_in_memory(first, kAll), kAll / 2) << "the holes are not in memory";
    held[1].reset();
    EXPECT_EQ(bytes_in_memory(first, kAll), kAll / 2 - kEach) << "nor is a new one";
    const Status refused = without_exceptions(nullptr, [] { return of_bytes(32 * kMiB), Status(); });
    EXPECT_EQ(refused.code(), Code::kDoesNotFit);
  }
  held[3].reset();
  EXPECT_EQ(bytes_in_memory(first, kAll), kAll / 2 - kEach) << "nothing is beyond the limit any more";
}

TEST_F(OneTensorMemory, KeepsWhatIsInUseWhereTheRestIsGivenBack) {
  const uint64_t seed = 11;
  SCOPED_TRACE(text("seed ", seed));
  std::mt19937_64 random(seed);
  std::vector<std::pair<at::Tensor, int64_t>> held;
  for (int round = 0; round < 400; ++round) {
    const auto count = static_cast<int64_t>(4096 + random() % 100'000);
    held.emplace_back(at::arange(round, round + count, at::kLong), round);
    while (held.size() > 12) held.erase(held.begin() + static_cast<ptrdiff_t>(random() % held.size()));
    if (round % 50 == 0) memory_.give_back();
  }
  uint64_t bytes = 0;
  for (const auto& [tensor, first] : held) {
    EXPECT_EQ(tensor[0].item<int64_t>(), first);
    EXPECT_EQ(tensor[-1].item<int64_t>(), first + tensor.numel() - 1);
    bytes += round_up(tensor.nbytes(), uint64_t{4096});
  }
  EXPECT_EQ(memory_.live_bytes(), before_ + bytes);
  // Places are used again: holes do not grow.
  EXPECT_LT(memory_.touched_bytes(), before_ + 40 * 104'096 * 8);
  held.clear();
  memory_.give_back();
  EXPECT_EQ(memory_.live_bytes(), before_);
}

}  // namespace
}  // namespace penstock::trainer
