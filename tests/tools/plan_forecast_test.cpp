// Forecasts against floors worked out on paper, and properties that any honest forecast has.
#include "tools/plan/forecast.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "tests/tools/forecasts.h"
#include "tools/penstock/plan_flags.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_json.h"
#include "tools/plan/forecast_text.h"

namespace penstock::tools {
namespace {

// Nanoseconds a parameter and step on the drives (14 bytes read, 12 written), and the tokens at which that is as long
// as computing 8 flops a parameter and token takes: 14/14 + 12/10 with 150 Tflop/s, 14/26 + 12/18 with 450, 14/90 +
// 12/56 with 8 x 550.
struct Floor {
  const char* machine;
  double ns_per_parameter;
  double compute_bound_tokens;
};
constexpr Floor kFloors[] = {{"rtx4090-2gen4", 2.20, 41e3}, {"h100-4gen4", 1.205, 68e3}, {"8h200-8gen5", 0.370, 204e3}};

ForecastRequest all_on_drives(const char* machine) {
  ForecastRequest request = large_step_of("llama-2-7b", machine);
  request.choices.host_state_share = 0;
  request.choices.weights = WeightTier::nvme;
  request.choices.activations = ActivationChoice::recompute_offload;
  return request;
}

TEST(Forecast, RefusesStepsThatNoPlanHolds) {
  ForecastRequest request = large_step_of("llama-2-7b", "h100-4gen4");
  request.tokens = uint64_t{1} << 40;
  EXPECT_NE(forecast(request).status().message().find("more than 2^60 B of activations"), std::string::npos);
  request.shape.layers = 1;
  request.shape.hidden = request.shape.ffn = 16;
  request.sequence = 1;
  const Status too_many = forecast(request).status();
  EXPECT_EQ(too_many.code(), Code::kUsage);
  EXPECT_NE(too_many.message().find("--micro-batches: "), std::string::npos) << too_many.message();
}

TEST(Forecast, IsNearTheFloorWhereTheDrivesBoundIt) {
  for (const Floor& floor : kFloors) {
    ForecastRequest request = all_on_drives(floor.machine);
    request.tokens = 8192;
    const Forecast result = forecast_of(request);
    ASSERT_TRUE(result.fits) << floor.machine;
    const auto parameters = static_cast<double>(request.shape.parameters());
    const double ns = result.times.step_s / parameters * 1e9;
    EXPECT_EQ(result.bottleneck(), "drives") << floor.machine;
    // Of 26 bytes, 2 are not read where an update has left the weight to the next forward.
    EXPECT_GE(ns, 0.99 * 24 / 26 * floor.ns_per_parameter) << floor.machine;
    EXPECT_LE(ns, 1.10 * floor.ns_per_parameter) << floor.machine;
    // The head's weights stay from its forward to its backward.
    const double most_read = 14 - 2 * static_cast<double>(request.shape.head_parameters()) / parameters;
    const double read = result.read_bytes_per_step / parameters;
    EXPECT_LE(read, most_read + 0.001) << floor.machine;
    EXPECT_GE(read, most_read - 2) << floor.machine;
    EXPECT_NEAR(result.written_bytes_per_step / parameters, 12, 0.01);
    const auto told = forecast_json(result)["bytes_per_parameter"];
    EXPECT_NEAR(told["read"].get<double>(), read, 0.001);
    EXPECT_NEAR(told["written"].get<double>(), 12, 0.01);
  }
}

TEST(Forecast, IsNearComputeWhereThatBoundsIt) {
  for (const Floor& floor : kFloors) {
    ForecastRequest request = all_on_drives(floor.machine);
    request.tokens = static_cast<uint64_t>(4 * floor.compute_bound_tokens) / 512 * 512;
    const Forecast result = forecast_of(request);
    ASSERT_TRUE(result.fits) << floor.machine << forecast_text(result);
    EXPECT_EQ(result.bottleneck(), "compute") << floor.machine;
    const double compute_s = result.lane_busy_s(Lane::compute);
    EXPECT_GE(result.times.step_s, 0.99 * compute_s);
    EXPECT_LE(result.times.step_s, 1.05 * compute_s) << floor.machine;
    EXPECT_NEAR(result.compute_bound_tokens / floor.compute_bound_tokens, 1, 0.12) << floor.machine;
  }
}

TEST(Forecast, IsNeverComputeBoundWhereOffloadingTakesLonger) {
  ForecastRequest request = all_on_drives("rtx4090-2gen4");
  request.choices.activations = ActivationChoice::offload;
  request.budgets.host_bytes = uint64_t{1} << 40;
  EXPECT_GT(forecast_of(request).compute_bound_tokens, 0);
  request.machine.device_to_host_gbps = 5;
  const Forecast result = forecast_of(request);
  ASSERT_TRUE(result.fits);
  EXPECT_GT(result.lane_busy_s(Lane::device_to_host), result.lane_busy_s(Lane::compute));
  EXPECT_EQ(result.compute_bound_tokens, 0);
}

TEST(Forecast, TimesEachWayOfALinkByItsOwnRate) {
  constexpr double kUpGbps = 20, kDownGbps = 80;
  ForecastRequest request = all_on_drives("rtx4090-2gen4");
  request.choices.activations = ActivationChoice::offload;
  request.budgets.host_bytes = uint64_t{1} << 40;
  // Weights go up, so that is the way that binds, where all else is fast.
  request.machine.host_gbps *= 1000;
  for (DriveRates& drive : request.machine.drives) {
    drive.burst = drive.burst.scaled(1000);
    drive.sustained.reset();
  }
  request.machine.host_to_device_gbps = kUpGbps;
  request.machine.device_to_host_gbps = kDownGbps;
  const Forecast result = forecast_of(request);
  ASSERT_TRUE(result.fits);
  double up_bytes = 0;
  for (const Move& move : result.plan->moves)
    up_bytes += move.kind == MoveKind::upload_activation ? static_cast<double>(move.bytes) : 0;
  // What is offloaded grows with the tokens as computing does, and the weights' own time does not.
  const double up_s = up_bytes / (kUpGbps * 1e9), compute_s = result.lane_busy_s(Lane::compute);
  ASSERT_GT(up_s, 0);
  const double times = (result.lane_busy_s(Lane::host_to_device) - up_s) / (compute_s - up_s);
  EXPECT_NEAR(result.compute_bound_tokens / static_cast<double>(request.tokens), times, 1e-6 * times);
}

TEST(Forecast, HasTheKeysThatProgramsRelyOn) {
  const auto json = forecast_json(forecast_of(large_step_of("gpt2", "cpu-2core")));
  for (const char* key : {"fits", "needed_bytes", "budget_bytes", "step_s", "bottleneck", "lanes",
                          "bytes_per_parameter", "tokens_per_s", "drive_life_days"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_TRUE(json["bytes_per_parameter"].contains("read") && json["bytes_per_parameter"].contains("written"));
  EXPECT_TRUE(json["needed_bytes"]["host"]["lines"].is_object());
}

TEST(Forecast, NotesWhatItDoesNotKnow) {
  ForecastRequest request = large_step_of("gpt2", "cpu-2core");
  request.machine.device_flops = request.machine.host_gbps = 0;
  for (DriveRates& drive : request.machine.drives) drive.sustained.reset();
  const Forecast result = forecast_of(request);
  std::string notes;
  for (const std::string& note : result.notes) notes += note;
  for (const char* part : {"burst rates", "time of compute", "time of updates", "life is unknown"}) {
    EXPECT_NE(notes.find(part), std::string::npos) << part;
  }
}

TEST(Forecast, DrivesOfWhichOneIsNotKnownToEndureHaveNoLife) {
  ForecastRequest request = large_step_of("gpt2", "rtx4090-2gen4");
  request.explains = false;
  request.scope = StepScope::update_only;
  request.choices.host_state_share = 0;
  ASSERT_EQ(request.machine.drives.size(), 2u);
  ASSERT_TRUE(forecast_of(request).drive_life_days());
  for (DriveRates& drive : request.machine.drives) {
    const double endurance_bytes = std::exchange(drive.endurance_bytes, 0);
    EXPECT_FALSE(forecast_of(request).drive_life_days()) << drive.path;
    drive.endurance_bytes = endurance_bytes;
  }
}

TEST(Forecast, FoundOnPartOfTheRatesIsALowerBoundAndSaysSo) {
  for (const auto& [forget, said] : std::vector<std::pair<void (*)(MachineProfile&), const char*>>{
           {[](MachineProfile& machine) { machine.device_flops = 0; }, "without compute"},
           {[](MachineProfile& machine) { machine.host_gbps = 0; }, "without updates"},
           {[](MachineProfile& machine) { machine.host_gbps = machine.device_flops = 0; },
            "without updates and compute"},
       }) {
    ForecastRequest request = large_step_of("gpt2", "cpu-2core");
    const double whole_s = forecast_of(request).times.step_s;
    forget(request.machine);
    request.durability.reset();
    const Forecast result = forecast_of(request);
    EXPECT_LT(result.times.step_s, whole_s);
    EXPECT_EQ(result.bottleneck(), "unknown");
    EXPECT_FALSE(result.tokens_per_s());
    EXPECT_EQ(text_of(result.durability), "step");
    EXPECT_NE(step_text(result).find("at least"), std::string::npos);
    EXPECT_TRUE(step_text(result).ends_with(said)) << step_text(result);
  }
}

TEST(Forecast, OfANodeWithoutRatesBetweenItsDevicesIsALowerBoundToo) {
  ForecastRequest request = large_step_of("llama-2-7b", "8h200-8gen5");
  request.machine.collective_gbps = request.machine.device_to_host_gbps = 0;
  const Forecast result = forecast_of(request);
  EXPECT_EQ(result.bottleneck(), "unknown");
  EXPECT_TRUE(step_text(result).ends_with("without collectives and copies from the device")) << step_text(result);
  std::string notes;
  for (const std::string& note : result.notes) notes += note;
  EXPECT_NE(notes.find("collective_gbps"), std::string::npos) << notes;
  EXPECT_NE(notes.find("device_to_host_gbps"), std::string::npos) << notes;
}

TEST(Forecast, HasNoLaneThatIsBusyForLongerThanAStep) {
  for (const char* machine : {"cpu-2core", "rtx4090-2gen4"}) {
    for (double strikes : {0.0, 0.25, 1.0}) {
      for (std::optional<Durability> durability :
           {std::optional<Durability>(), std::optional(Durability{Durability::Kind::exit, 1}),
            std::optional(Durability{Durability::Kind::every, 50})}) {
        ForecastRequest request = large_step_of("gpt2", machine);
        request.tokens = 512;
        request.durability = durability;
        request.clipping = {.norm = strikes > 0 ? 1.0 : 0.0, .strike_share = strikes};
        const Forecast result = forecast_of(request);
        for (double busy_s : result.times.busy_s) EXPECT_LE(busy_s, 1.2 * result.times.step_s) << machine << strikes;
        EXPECT_LE(result.times.drives_busy_s, 1.2 * result.times.step_s) << machine << " " << strikes;
      }
    }
  }
}

TEST(Forecast, RefusesNonsense) {
  for (auto spoil : std::vector<void (*)(ForecastRequest&)>{
           [](ForecastRequest& request) { request.machine.drives.clear(); },
           [](ForecastRequest& request) { request.tokens = 100; },
           [](ForecastRequest& request) { request.tokens = 99'999'999'999'999; },
           [](ForecastRequest& request) { request.sequence = 0; },
           [](ForecastRequest& request) { request.micro_batches = 1'000'000; },
           [](ForecastRequest& request) { request.micro_batches = 129; },  // of 128 sequences
           [](ForecastRequest& request) {
             request.machine.devices = 8;
             request.tokens = 4 * request.sequence;
           },
           [](ForecastRequest& request) { request.sequence = 1025; },  // gpt2 has 1024 positions
       }) {
    ForecastRequest request = large_step_of("gpt2", "cpu-2core");
    spoil(request);
    const Result<Forecast> result = forecast(request);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::kUsage);
  }
}

TEST(PlanFlags, TakeAsManyMicroBatchesAsTheRefusalOfMoreNames) {
  PlanFlags flags;
  flags.model = "gpt2";
  flags.machine = "cpu-2core";
  flags.micro_batches = 1'000'000;
  EXPECT_TRUE(request_of(flags).ok());
  ++flags.micro_batches;
  const Status refused = request_of(flags).status();
  EXPECT_EQ(refused.code(), Code::kUsage);
  EXPECT_NE(refused.message().find("at most 1000000"), std::string::npos) << refused.message();
}

TEST(PlanFlags, LeftOutMeanWhatTheirHelpSays) {
  auto asked = [](const char* machine, const char* model, uint64_t nodes, std::optional<uint64_t> ranks = {}) {
    PlanFlags flags;
    flags.machine = machine;
    flags.model = model;
    flags.nodes = nodes;
    flags.ranks = ranks;
    const Result<ForecastRequest> request = request_of(flags);
    EXPECT_TRUE(request.ok()) << request.status().message();
    return *request;
  };
  EXPECT_EQ(asked("cpu-2core", "gpt2", 1).tokens, 8192u);
  EXPECT_EQ(asked("cpu-2core", "gpt2", 3).tokens, 3 * 8192u);
  EXPECT_EQ(asked("cpu-2core", "gpt2", 1, 2).tokens, 8192u);  // of both ranks together
  EXPECT_EQ(asked("rtx4090-2gen4", "gpt2", 1).tokens, 65536u);
  EXPECT_EQ(asked("8h200-8gen5", "gpt2", 1).tokens, 8 * 65536u);
  EXPECT_EQ(asked("8h200-8gen5", "gpt2", 4).tokens, 32 * 65536u);
  EXPECT_EQ(asked("cpu-2core", "gpt2", 1).sequence, 1024u);  // as many as it has positions
  EXPECT_EQ(asked("cpu-2core", "llama-2-7b", 1).sequence, 2048u);
}

TEST(PlanFlags, SayFormsAndStages) {
  PlanFlags flags;
  flags.machine = "8h200-8gen5";
  flags.strike_share = 0.25;
  EXPECT_EQ(request_of(flags)->clipping.strike_share, 0.25);
  flags.clip = "off";
  EXPECT_FALSE(request_of(flags)->clipping.may_take_back());
  EXPECT_EQ(request_of(flags)->clipping.strike_share, 0);
  for (const auto& [word, form] :
       {std::pair("fp32", MomentForm::fp32), {"bf16", MomentForm::bf16}, {"int8", MomentForm::int8}}) {
    flags.moments = word;
    EXPECT_EQ(request_of(flags)->form.moments, form) << word;
  }
  for (const OptimizerKind kind : kOptimizerKinds) {
    flags.optimizer = name_of(kind);
    EXPECT_EQ(request_of(flags)->form.optimizer, kind) << flags.optimizer;
  }
  const std::pair<const char*, std::optional<Stage>> stages[] = {{"auto", {}},          {"0", Stage::replicated},
                                                                 {"1", Stage::states},  {"2", Stage::states},
                                                                 {"3", Stage::sharded}, {"hybrid", Stage::hybrid}};
  for (const auto& [word, stage] : stages) {
    flags.stage = word;
    EXPECT_EQ(request_of(flags)->stage, stage) << word;
  }
}

// In host memory, state is updated in place, and so only when it is known whether gradients are clipped.
TEST(Forecast, HostMemoryThatWouldDelayUpdatesIsLeftUnused) {
  ForecastRequest request = large_step_of("gpt2-xl", "rtx4090-2gen4");
  request.clipping.norm = 1;
  double before_s = std::numeric_limits<double>::max();
  for (uint64_t host_bytes : {12 * kGiB, 24 * kGiB, 48 * kGiB}) {
    request.budgets.host_bytes = host_bytes;
    const double step_s = forecast_of(request).times.step_s;
    EXPECT_LE(step_s, 1.01 * before_s) << bytes_text(host_bytes);
    before_s = step_s;
  }
}

}  // namespace
}  // namespace penstock::tools
