// More memory or more drives never make a forecast slower.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/tools/forecasts.h"
#include "tools/plan/forecast_text.h"

namespace penstock::tools {
namespace {

// A plan's pipeline fills in whole tiles, which is worth a little either way.
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

struct Improvement {
  const char* what;
  void (*apply)(ForecastRequest&);
  double most = kTileEffects;  // of the time before
};
constexpr Improvement kImprovements[] = {
    // As much state as fits rests in it, or none; of models as small as these, a part may be a little faster than
    // either.
    {"100 MiB of host memory", [](ForecastRequest& request) { request.budgets.host_bytes += 100 * kMiB; }, 1.06},
    {"three times the host memory", [](ForecastRequest& request) { request.budgets.host_bytes *= 3; }},
    {"twice the device memory", [](ForecastRequest& request) { request.budgets.device_bytes *= 2; }},
    {"a drive", [](ForecastRequest& request) { request.machine.drives.push_back(request.machine.drives.front()); }},
};

// PENSTOCK_PLAN_CASES sets the number of random requests.
TEST(MoreIsNeverSlower, OfMemoryAndDrives) {
  const char* const asked = std::getenv("PENSTOCK_PLAN_CASES");
  const uint64_t cases = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 40;
  uint64_t compared = 0;
  for (uint64_t seed = 1; seed <= cases; ++seed) {
    std::mt19937_64 random(seed);
    const ForecastRequest request = random_request(random);
    const Forecast before = forecast_of(request);
    if (!before.fits) continue;
    for (const Improvement& improvement : kImprovements) {
      ForecastRequest better = request;
      improvement.apply(better);
      const Forecast after = forecast_of(better);
      ASSERT_TRUE(after.fits) << "seed " << seed << ", with " << improvement.what;
      EXPECT_LE(after.times.step_s, improvement.most * before.times.step_s)
          << "seed " << seed << ", with " << improvement.what << "\n"
          << forecast_text(before) << forecast_text(after);
    }
    ++compared;
  }
  EXPECT_GT(compared, cases / 2);
}

}  // namespace
}  // namespace penstock::tools
