// More memory, or more drives, never make a forecast slower.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/tools/forecasts.h"
#include "tools/plan/forecast_text.h"

namespace penstock::tools {
namespace {

// More of anything is never slower. A plan's pipeline fills in whole tiles, which is worth a little either way.
constexpr double kTileEffects = 1.03;

ForecastRequest random_request(std::mt19937_64& random) {
  auto up_to = [&](uint64_t n) { return random() % (n + 1); };
  static const char* const kMachines[] = {"rtx4090-2gen4", "h100-4gen4", "8h200-8gen5", "cpu-2core"};
  ForecastRequest request = large_step_of("gpt2", kMachines[up_to(3)]);
  ModelShape& shape = request.shape;
  shape.layers = 2 + up_to(10);
  shape.heads = shape.kv_heads = 4 + 4 * up_to(3);
  shape.hidden = 64 * shape.heads;
  shape.ffn = 4 * shape.hidden;
  shape.vocab = 8192;
  shape.tied = up_to(1);
  request.tokens = 512 * 8 * (1 + up_to(15));
  request.clipping.norm = static_cast<double>(up_to(1));
  const uint64_t state = shape.parameters() * 12;
  request.budgets.host_bytes = 700 * kMiB + up_to(2 * state);
  request.budgets.device_bytes = kGiB + up_to(4 * kGiB);
  return request;
}

class MoreIsNeverSlower : public testing::Test {
 protected:
  void SetUp() override {
    for (uint64_t seed = 1; seed <= 80; ++seed) {
      std::mt19937_64 random(seed);
      requests_.push_back(random_request(random));
    }
  }

  void check(void (*improve)(ForecastRequest&), double most = kTileEffects) {
    int compared = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const Forecast before = forecast_of(requests_[i]);
      if (!before.fits) continue;
      ForecastRequest better = requests_[i];
      improve(better);
      const Forecast after = forecast_of(better);
      ASSERT_TRUE(after.fits) << "seed " << i + 1;
      EXPECT_LE(after.times.step_s, most * before.times.step_s) << "seed " << i + 1 << "\n"
                                                                << forecast_text(before) << forecast_text(after);
      ++compared;
    }
    EXPECT_GT(compared, 40);
  }

  std::vector<ForecastRequest> requests_;
};

// As much state as fits rests in it, or none; of models as small as these, a part may be a little faster than either.
TEST_F(MoreIsNeverSlower, HostMemory) {
  check([](ForecastRequest& request) { request.budgets.host_bytes += 100 * kMiB; }, 1.06);
}
TEST_F(MoreIsNeverSlower, MuchHostMemory) {
  check([](ForecastRequest& request) { request.budgets.host_bytes *= 3; });
}
TEST_F(MoreIsNeverSlower, DeviceMemory) {
  check([](ForecastRequest& request) { request.budgets.device_bytes *= 2; });
}
TEST_F(MoreIsNeverSlower, Drives) {
  check([](ForecastRequest& request) { request.machine.drives.push_back(request.machine.drives.front()); });
}

}  // namespace
}  // namespace penstock::tools
