// What bounds a step, what more hardware would bring, what reaches an aim, and plans of adapters.
#include "tools/plan/advice.h"

#include <gtest/gtest.h>

#include "tests/tools/forecasts.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_request.h"
#include "tools/plan/resource_change.h"
#include "tools/plan/training_workload.h"

namespace penstock::tools {
namespace {

ForecastRequest request_for(const std::string& model, const std::string& machine, uint64_t tokens) {
  return clipped_step_of(model, machine, tokens);
}

void make_faster(MachineProfile& machine, const std::string& resource, double times) {
  for (DriveRates& drive : machine.drives) {
    if (resource != "drives") continue;
    drive.burst = drive.burst.scaled(times);
    if (drive.sustained) drive.sustained = drive.sustained->scaled(times);
  }
  if (resource == "compute") machine.device_flops *= times;
  if (resource == "update") machine.host_gbps *= times;
  if (resource == "host_to_device") machine.host_to_device_gbps *= times;
  if (resource == "device_to_host") machine.device_to_host_gbps *= times;
}

// The search may answer a faster resource with another plan, so what is said of the present one holds nearly.
TEST(Advice, TheBottleneckIsWhatShortensTheStepWhenItIsFasterAndAllIsPlannedAgain) {
  for (const uint64_t tokens : {2048u, 32768u}) {
    const ForecastRequest request = request_for("gpt2", "rtx4090-2gen4", tokens);
    const Forecast usual = forecast_of(request);
    std::string best;
    double most_s = 0, of_named_s = 0;
    for (const Relief& relief : usual.reliefs) {
      ForecastRequest faster = request;
      make_faster(faster.machine, relief.resource, kReliefFaster);
      const double saved_s = usual.times.step_s - forecast_of(faster).times.step_s;
      if (saved_s > most_s) best = relief.resource;
      most_s = std::max(most_s, saved_s);
      if (relief.resource == usual.bottleneck()) of_named_s = saved_s;
    }
    EXPECT_GE(of_named_s, most_s - 0.01 * usual.times.step_s)
        << tokens << " tokens: said " << usual.bottleneck() << ", best " << best;
  }
}

// Of nodes, ranks take what they gather over the network, too.
TEST(Advice, ATenthFasterBetweenRanksIsATenthFasterBetweenNodes) {
  ForecastRequest request = ranks_of("8h200-8gen5", 8);
  request.nodes = 4;
  request.micro_batches = 1;
  request.stage = Stage::sharded;
  request.machine.network_gbps = 0.1;
  const Forecast result = forecast_of(request);
  EXPECT_EQ(result.bottleneck(), "collective");
  EXPECT_NEAR(result.reliefs.front().saved_s, (1 - 1 / kReliefFaster) * result.times.step_s,
              0.01 * result.times.step_s);
}

// Where the drives carry next to nothing and compute is as good as free, neither is named, however busy it is.
TEST(Advice, ALaneThatNothingWaitsForIsNotTheBottleneck) {
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4", 4096);
  request.machine.device_flops *= 1000;
  request.machine.host_gbps /= 10;
  EXPECT_EQ(forecast_of(request).bottleneck(), "update");
}

TEST(Advice, PlansForMoreOfEachResourceThatAStepUsesAndChangesNothingElse) {
  MachineProfile machine;
  machine.drives.resize(1);
  machine.drives.front().burst = MixCurve::flat(2);
  machine.host_gbps = 10;
  machine.device_flops = 1e12;
  const Budgets used{0, 8 * kGiB, 64 * kGiB};
  auto names = [&](const Resources& now) {
    std::string all;
    for (const ResourceChange& change : more_of_each(now)) all += change.what.substr(0, change.what.find(':')) + ", ";
    return all;
  };
  EXPECT_EQ(names({machine, used, used, StepScope::update_only}), "drives, host memory, updates on the CPU, ");
  const std::vector<ResourceChange> changes = more_of_each({machine, used, used});
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].machine.drives.size(), 2u);
  EXPECT_EQ(changes[1].budgets.host_bytes, 40 * kGiB);
  EXPECT_EQ(changes[1].machine.drives.size(), 1u);
  EXPECT_EQ(changes[2].machine.host_gbps, 20);
  EXPECT_EQ(changes[2].budgets.host_bytes, 8 * kGiB);
  EXPECT_EQ(changes[3].compute_faster, 2);
  EXPECT_EQ(changes[3].machine.device_flops, 2e12);
  machine.devices = 2;
  machine.host_to_device_gbps = 25;
  EXPECT_EQ(
      names({machine, used, used, StepScope::training, 2}),
      "drives, host memory, updates on the CPU, compute, device memory, links to devices, links between devices, ");
}

TEST(Advice, TheBudgetItNamesForAStepIsTheLeastToWithin64MiB) {
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4", 4096);
  request.budgets.host_bytes = 4 * kGiB;
  const Forecast usual = forecast_of(request);
  const double aim_s = 1.3 * usual.times.step_s;
  const auto advice = advise(request, usual, {.step_s = aim_s}, [](double, const std::string&) {});
  ASSERT_TRUE(advice.ok());
  ASSERT_EQ(advice->aims.size(), 1u);
  const AimAnswer& aim = advice->aims.front();
  ASSERT_TRUE(aim.is_reached) << aim.answer;
  const std::string flag = "--budget host=";
  ASSERT_EQ(aim.answer.find(flag), 0u) << aim.answer;
  const uint64_t bytes = *parse_bytes(aim.answer.substr(flag.size(), aim.answer.find(':') - flag.size()));
  ForecastRequest with = request;
  with.budgets.host_bytes = bytes;
  EXPECT_LE(forecast_of(with).times.step_s, aim_s) << aim.answer;
  with.budgets.host_bytes = bytes - 64 * kMiB;
  const Forecast less = forecast_of(with);
  EXPECT_TRUE(!less.fits || less.times.step_s > aim_s) << aim.answer;
}

TEST(Advice, NamesTheStrictestDurabilityThatSparesTheDrives) {
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4", 4096);
  request.durability = Durability{};
  const Forecast usual = forecast_of(request);
  const double aim_days = 2 * usual.drive_life_days().value();
  const auto advice = advise(request, usual, {.drive_life_days = aim_days}, [](double, const std::string&) {});
  ASSERT_TRUE(advice.ok());
  ASSERT_TRUE(advice->aims.front().is_reached) << advice->aims.front().answer;
  const std::string& answer = advice->aims.front().answer;
  EXPECT_EQ(answer.find("--durability every:10"), 0u) << answer;
  // What it promises is what planning with that durability says.
  request.durability = Durability{Durability::Kind::every, 10};
  const Forecast with = forecast_of(request);
  EXPECT_NE(answer.find(text(fixed(with.drive_life_days().value(), 0), " days, ", seconds_text(with.times.step_s))),
            std::string::npos)
      << answer;
}

TEST(Advice, SaysWhatMoreOfEachWouldBring) {
  const ForecastRequest request = request_for("gpt2", "rtx4090-2gen4", 131072);
  const Forecast usual = forecast_of(request);
  const auto advice = advise(request, usual, {.changes = true}, [](double, const std::string&) {});
  ASSERT_TRUE(advice.ok());
  ASSERT_EQ(advice->changes.size(), 6u);
  for (const Change& change : advice->changes) {
    EXPECT_LE(change.step_s, 1.005 * usual.times.step_s) << change.what;
    if (change.what == "compute: twice as fast") {
      EXPECT_LT(change.step_s, 0.75 * usual.times.step_s);
    }
  }
  EXPECT_EQ(advice_json(*advice)["changes"].size(), 6u);
}

// PEFT counts 39,976,960 for rank 16 on all linear layers of Llama 2 7B.
TEST(PlanOfAdapters, TrainsWhatPeftWould) {
  const ModelShape shape = *load_model("llama-2-7b");
  EXPECT_EQ(shape.layers * shape.block_adapter_parameters(16), 39'976'960u);
  const StepShape step{.tokens = 512, .sequence = 512, .device_flops = 1e12, .adapters = AdapterShape{16, {}}};
  uint64_t trained = 0, frozen = 0;
  for (const Unit& unit : training_units(shape, step)) (unit.trainable ? trained : frozen) += unit.elements;
  EXPECT_EQ(trained, 39'976'960u);
  EXPECT_EQ(frozen, shape.parameters());
}

TEST(PlanOfAdapters, OfACodedBaseReadsAQuarterAndComputesNoGradientOfIt) {
  ForecastRequest request = request_for("llama-2-7b", "rtx4090-2gen4", 4096);
  request.choices.weights = WeightTier::nvme;
  request.choices.activations = ActivationChoice::recompute;
  const Forecast full = forecast_of(request);
  request.adapters = AdapterShape{16, {}};
  const Forecast in_bf16 = forecast_of(request);
  request.adapters->base_code = BlockCode::nf4;
  const Forecast in_nf4 = forecast_of(request);
  ASSERT_TRUE(full.fits && in_bf16.fits && in_nf4.fits);
  // Forward, forward again and backward: 4 forwards of all weights, 3 where none has a gradient, adapters besides.
  EXPECT_NEAR(in_bf16.lane_busy_s(Lane::compute) / full.lane_busy_s(Lane::compute), 0.75, 0.02);
  // Half a byte and a scale of 4 B to 64 codes, of 2 B; embedding and head stay in bf16.
  const auto parameters = static_cast<double>(request.shape.parameters());
  EXPECT_NEAR(in_bf16.read_bytes_per_step / parameters, 4, 0.3);
  EXPECT_NEAR(in_nf4.read_bytes_per_step / in_bf16.read_bytes_per_step, 0.5625 / 2, 0.05);
  EXPECT_LT(in_nf4.needed_bytes(Tier::nvme), in_bf16.needed_bytes(Tier::nvme) / 2);
}

TEST(PlanOfAdapters, RefusesARankThatNoMatrixHas) {
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4", 4096);
  request.adapters = AdapterShape{769, {}};
  const Status refused = forecast(request).status();
  EXPECT_NE(refused.message().find("--lora-rank: 769: 1 to 768 expected"), std::string::npos) << refused.message();
  // Keys and values of few heads are the narrowest there are.
  request.shape = *load_model("llama-3-8b");
  for (const auto& [rank, fits] : {std::pair(1024u, true), {1025u, false}}) {
    request.adapters = AdapterShape{rank, {}};
    const Status status = check_request(request);
    EXPECT_EQ(status.ok(), fits) << status.message();
  }
}

}  // namespace
}  // namespace penstock::tools
