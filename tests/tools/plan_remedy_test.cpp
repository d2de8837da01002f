// What a forecast says where no plan fits: what the smallest needs, and ways out that suffice.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tools/forecasts.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_json.h"
#include "tools/plan/forecast_text.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

TEST(Forecast, SaysWhatTheSmallestPlanNeedsWhereItDoesNotFit) {
  ForecastRequest request = large_step_of("llama-2-7b", "rtx4090-2gen4");
  request.budgets.host_bytes = kGiB;
  request.budgets.nvme_bytes = 100 * kGiB;
  const Forecast result = forecast_of(request);
  ASSERT_FALSE(result.fits);
  EXPECT_GT(result.needed_bytes(Tier::host), kGiB);
  EXPECT_GT(result.needed_bytes(Tier::nvme), 100 * kGiB);
  const Status verdict = forecast_verdict(result);
  EXPECT_EQ(verdict.code(), Code::kDoesNotFit);
  EXPECT_NE(verdict.message().find("1.00 GiB"), std::string::npos) << verdict.message();
  EXPECT_NE(verdict.remedy().find("--budget host="), std::string::npos) << verdict.remedy();
  EXPECT_FALSE(forecast_json(result)["fits"].get<bool>());
  // And with that, it does.
  request.budgets.host_bytes = result.needed_bytes(Tier::host);
  request.budgets.nvme_bytes = result.needed_bytes(Tier::nvme);
  EXPECT_TRUE(forecast_of(request).fits);
}

TEST(Forecast, SaysWhatTheSmallestPlanNeedsOfALargeModelToo) {
  ForecastRequest request = large_step_of("llama-2-70b", "h100-4gen4");
  request.scope = StepScope::update_only;
  request.clipping.norm = 1;
  request.budgets.host_bytes = 300 * kMiB;
  request.budgets.nvme_bytes = uint64_t{100} << 40;
  const Forecast result = forecast_of(request);
  ASSERT_FALSE(result.fits);
  EXPECT_LT(result.needed_bytes(Tier::host), 600 * kMiB);
  request.budgets.host_bytes = result.needed_bytes(Tier::host);
  EXPECT_TRUE(forecast_of(request).fits);
}

TEST(Forecast, TheSmallestPlanSparesTheDevice) {
  ForecastRequest request = large_step_of("llama-3-405b", "h100-4gen4");
  request.budgets.device_bytes = 80 * kGiB;
  request.budgets.host_bytes = kGiB;
  const Forecast result = forecast_of(request);
  ASSERT_FALSE(result.fits);
  EXPECT_LE(result.needed_bytes(Tier::device), 80 * kGiB);
}

TEST(Forecast, AsksForTheMemoryOfTheWholeNode) {
  ForecastRequest request = large_step_of("llama-2-70b", "8h200-8gen5");
  request.budgets.host_bytes = 8 * kGiB;
  const Forecast result = forecast_of(request);
  ASSERT_FALSE(result.fits);
  const uint64_t enough_mib = ceil_div(8 * result.needed_bytes(Tier::host), kMiB);
  EXPECT_TRUE(result.remedy.starts_with(text("--budget host=", enough_mib, "MiB"))) << result.remedy;
}

// Follows every way out that the remedy offers, one at a time.
void follow(const ForecastRequest& request, const std::string& remedy) {
  for (std::string rest = remedy; !rest.empty();) {
    const size_t end = std::min(rest.find("; or "), rest.size());
    const std::string way = rest.substr(0, end);
    rest = rest.substr(std::min(rest.size(), end + 5));
    SCOPED_TRACE(way);
    ForecastRequest changed = request;
    std::istringstream words(way);
    std::string flag, value;
    words >> flag >> value;
    if (flag == "--budget") {
      for (const std::string& one : split(value, ',')) {
        const size_t equals = one.find('=');
        const std::string tier = one.substr(0, equals);
        const Result<uint64_t> bytes = parse_bytes(one.substr(equals + 1));
        ASSERT_TRUE(bytes.ok());
        (tier == "host"     ? changed.budgets.host_bytes
         : tier == "device" ? changed.budgets.device_bytes
                            : changed.budgets.nvme_bytes) = *bytes;
      }
    } else if (flag == "--tokens") {
      changed.tokens = *parse_count(value);
    } else if (flag == "--seq") {
      changed.sequence = *parse_count(value);
    } else if (flag == "--micro-batches") {
      changed.micro_batches = static_cast<uint32_t>(*parse_count(value));
    } else if (flag == "--moments") {
      changed.form.moments = value == "bf16" ? MomentForm::bf16 : MomentForm::int8;
    } else if (flag == "--space") {
      ASSERT_EQ(value, "single");
      changed.slots = 1;
    } else if (flag == "--activations") {
      ASSERT_EQ(value, "auto");
      changed.choices.activations = std::nullopt;
    } else {
      EXPECT_TRUE(way.starts_with("a machine with ")) << "not known to this test";
      continue;
    }
    EXPECT_TRUE(forecast_of(changed).fits);
  }
}

TEST(Forecast, AdvisesOnlyWhatSuffices) {
  std::string offered;
  auto refused = [&](const ForecastRequest& request) {
    const Forecast result = forecast_of(request);
    ASSERT_FALSE(result.fits);
    offered += result.remedy + "\n";
    follow(request, result.remedy);
  };
  ForecastRequest request = large_step_of("llama-2-7b", "rtx4090-2gen4");
  request.shape.layers = 4;
  request.budgets.host_bytes = kGiB;
  refused(request);
  request.budgets.host_bytes = 0;
  request.budgets.nvme_bytes = 20 * kGiB;
  refused(request);
  request.budgets = {6 * kGiB, 20 * kGiB, 0};
  request.choices.activations = ActivationChoice::keep;
  refused(request);
  request.choices.activations = ActivationChoice::recompute_offload;
  request.sequence = request.tokens = 131'072;
  refused(request);
  EXPECT_EQ(offered.find("recompute-offload"), std::string::npos) << "it was asked for, or tried by itself";
  for (const char* way : {"--budget host=", "--moments ", "--space single", "--activations auto", "--seq "}) {
    EXPECT_NE(offered.find(way), std::string::npos) << way << " in\n" << offered;
  }
}

TEST(Forecast, WithSingleSpaceTheStoreTakesHalfOfTheDrivesAndFitsWhereItDidNot) {
  ForecastRequest request = large_step_of("gpt2", "rtx4090-2gen4");
  const Forecast usual = forecast_of(request);
  ASSERT_TRUE(usual.fits);
  auto slots_of = [](const Forecast& result) {
    return forecast_json(result)["needed_bytes"]["nvme"]["lines"]["slots"].get<uint64_t>();
  };
  request.budgets.nvme_bytes = slots_of(usual) / 2 + kMiB;
  EXPECT_FALSE(forecast_of(request).fits);
  request.slots = 1;
  const Forecast single = forecast_of(request);
  ASSERT_TRUE(single.fits);
  EXPECT_EQ(2 * slots_of(single), slots_of(usual));
  EXPECT_EQ(forecast_json(single)["plan"]["space"], "single");
  EXPECT_NE(forecast_text(single).find("a crash during a step loses the store"), std::string::npos);
}

TEST(Forecast, TellsNeededFromAvailableWhereTheyAreNearlyEqual) {
  ForecastRequest request = large_step_of("llama-2-7b", "rtx4090-2gen4");
  request.budgets.host_bytes = kGiB;
  request.budgets.host_bytes = forecast_of(request).needed_bytes(Tier::host) - 4 * kKiB;
  const Status verdict = forecast_verdict(forecast_of(request));
  EXPECT_NE(verdict.message().find(", 4.00 KiB more than its budget of "), std::string::npos) << verdict.message();
}

}  // namespace
}  // namespace penstock::tools
