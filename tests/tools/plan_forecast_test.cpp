// Forecasts against floors worked out on paper, and properties that any honest forecast has.
#include "tools/plan/forecast.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "tests/tools/forecasts.h"
#include "tools/penstock/quantity.h"
#include "tools/plan/forecast_report.h"
#include "tools/plan/gantt.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

ForecastRequest request_for(const std::string& model, const std::string& machine) {
  ForecastRequest request = step_of(model, machine, 65536);
  request.durability = Durability{};
  return request;
}

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
  ForecastRequest request = request_for("llama-2-7b", machine);
  request.choices.host_state_share = 0;
  request.choices.weights = WeightTier::nvme;
  request.choices.activations = ActivationChoice::recompute_offload;
  return request;
}

TEST(Forecast, RefusesStepsThatNoPlanHolds) {
  ForecastRequest request = request_for("llama-2-7b", "h100-4gen4");
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
    EXPECT_GE(ns, 0.99 * floor.ns_per_parameter) << floor.machine;
    EXPECT_LE(ns, 1.10 * floor.ns_per_parameter) << floor.machine;
    // The head's weights stay from its forward to its backward.
    const double read = 14 - 2 * static_cast<double>(request.shape.head_parameters()) / parameters;
    EXPECT_NEAR(result.read_bytes_per_step / parameters, read, 0.001);
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

TEST(Forecast, SaysWhatTheSmallestPlanNeedsWhereItDoesNotFit) {
  ForecastRequest request = request_for("llama-2-7b", "rtx4090-2gen4");
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
  ForecastRequest request = request_for("llama-2-70b", "h100-4gen4");
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
  ForecastRequest request = request_for("llama-3-405b", "h100-4gen4");
  request.budgets.device_bytes = 80 * kGiB;
  request.budgets.host_bytes = kGiB;
  const Forecast result = forecast_of(request);
  ASSERT_FALSE(result.fits);
  EXPECT_LE(result.needed_bytes(Tier::device), 80 * kGiB);
}

TEST(Forecast, HasTheKeysThatProgramsRelyOn) {
  const auto json = forecast_json(forecast_of(request_for("gpt2", "cpu-2core")));
  for (const char* key : {"fits", "needed_bytes", "budget_bytes", "step_s", "bottleneck", "lanes",
                          "bytes_per_parameter", "tokens_per_s", "drive_life_days"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_TRUE(json["bytes_per_parameter"].contains("read") && json["bytes_per_parameter"].contains("written"));
  EXPECT_TRUE(json["needed_bytes"]["host"]["lines"].is_object());
}

TEST(Forecast, WritesHostStateAsOftenAsCostsLittle) {
  ForecastRequest request = request_for("gpt2-xl", "h100-4gen4");
  request.tokens = 4096;
  const Forecast each = forecast_of(request);
  request.durability.reset();
  const Forecast chosen = forecast_of(request);
  ASSERT_EQ(chosen.durability.kind, Durability::Kind::every);
  EXPECT_GT(chosen.durability.steps, 1u);
  EXPECT_LT(chosen.times.step_s, each.times.step_s);
  request.durability = Durability{Durability::Kind::exit, 1};
  EXPECT_LE(chosen.times.step_s, 1.031 * forecast_of(request).times.step_s);
}

TEST(Forecast, MixesDurableStepsAndTheOthersByTheirShare) {
  ForecastRequest request = request_for("gpt2-xl", "h100-4gen4");
  request.tokens = 4096;
  auto times_of = [&](Durability::Kind kind, uint32_t steps) {
    request.durability = Durability{kind, steps};
    return forecast_of(request).times;
  };
  const StepTimes each = times_of(Durability::Kind::step, 1), none = times_of(Durability::Kind::exit, 1);
  ASSERT_GT(each.step_s, 1.1 * none.step_s);
  const StepTimes fourth = times_of(Durability::Kind::every, 4);
  EXPECT_NEAR(fourth.step_s, none.step_s + (each.step_s - none.step_s) / 4, 1e-6 * each.step_s);
  EXPECT_NEAR(fourth.drives_busy_s, none.drives_busy_s + (each.drives_busy_s - none.drives_busy_s) / 4,
              1e-6 * each.step_s);
}

TEST(Forecast, CommitsAtExitWhatRestsInMemoryAndNoDurableStepHasWritten) {
  ForecastRequest request = request_for("gpt2", "cpu-2core");
  request.scope = StepScope::update_only;
  request.choices.host_state_share = 1;
  request.machine.host_gbps = 8;
  for (DriveRates& drive : request.machine.drives) {
    drive.sustained = MixCurve::flat(1);
    drive.by_memory = MemoryCurve();
    drive.flush_s = 0.25;
  }
  ASSERT_EQ(request.machine.drives.size(), 1u);
  EXPECT_FALSE(forecast_of(request).exit_commit) << "each step is durable";
  EXPECT_TRUE(forecast_json(forecast_of(request))["commit_at_exit"].is_null());

  request.durability = Durability{Durability::Kind::exit, 1};
  const Forecast result = forecast_of(request);
  ASSERT_TRUE(result.exit_commit);
  const auto bytes = static_cast<double>(result.exit_commit->written_bytes);
  EXPECT_NEAR(bytes / static_cast<double>(request.shape.parameters()), 12, 0.01);
  EXPECT_NEAR(result.exit_commit->seconds, bytes / 1e9 + 2 * 0.25, 1e-9);
  const auto json = forecast_json(result)["commit_at_exit"];
  EXPECT_EQ(json["written_bytes"], result.exit_commit->written_bytes);
  EXPECT_EQ(json["predicted_s"], result.exit_commit->seconds);
  EXPECT_NE(forecast_text(result).find("\ncommit at exit: "), std::string::npos) << forecast_text(result);

  // One thread gathers it, four times its traffic at 10 GB/s, where drives are faster than that.
  request.machine.host_gbps = 40;
  for (DriveRates& drive : request.machine.drives) drive.sustained = MixCurve::flat(50);
  EXPECT_NEAR(forecast_of(request).exit_commit->seconds, bytes / 2.5e9 + 2 * 0.25, 1e-9);

  request.choices.host_state_share = 0;
  EXPECT_FALSE(forecast_of(request).exit_commit) << "nothing rests in memory";
}

TEST(Forecast, IsDurableEachStepWhereTheDrivesHoldNoThirdSlot) {
  ForecastRequest request = request_for("gpt2-xl", "rtx4090-2gen4");
  request.scope = StepScope::update_only;
  request.clipping.norm = 1;
  request.budgets.host_bytes = 10 * kGiB;
  const Forecast each = forecast_of(request);
  ASSERT_TRUE(each.fits);
  request.durability.reset();
  EXPECT_EQ(forecast_of(request).durability.kind, Durability::Kind::every);
  request.budgets.nvme_bytes = each.needed_bytes(Tier::nvme);
  const Forecast chosen = forecast_of(request);
  EXPECT_TRUE(chosen.fits) << forecast_text(chosen);
  EXPECT_EQ(chosen.durability.kind, Durability::Kind::step);
  EXPECT_EQ(chosen.times.step_s, each.times.step_s);
}

TEST(Forecast, AsksForTheMemoryOfTheWholeNode) {
  ForecastRequest request = request_for("llama-2-70b", "8h200-8gen5");
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
  ForecastRequest request = request_for("llama-2-7b", "rtx4090-2gen4");
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
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4");
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
  ForecastRequest request = request_for("llama-2-7b", "rtx4090-2gen4");
  request.budgets.host_bytes = kGiB;
  request.budgets.host_bytes = forecast_of(request).needed_bytes(Tier::host) - 4 * kKiB;
  const Status verdict = forecast_verdict(forecast_of(request));
  EXPECT_NE(verdict.message().find(", 4.00 KiB more than its budget of "), std::string::npos) << verdict.message();
}

TEST(Forecast, NotesWhatItDoesNotKnow) {
  ForecastRequest request = request_for("gpt2", "cpu-2core");
  request.machine.device_flops = request.machine.host_gbps = 0;
  for (DriveRates& drive : request.machine.drives) drive.sustained.reset();
  const Forecast result = forecast_of(request);
  std::string notes;
  for (const std::string& note : result.notes) notes += note;
  for (const char* part : {"burst rates", "time of compute", "time of updates", "life is unknown"}) {
    EXPECT_NE(notes.find(part), std::string::npos) << part;
  }
}

TEST(Forecast, FoundOnPartOfTheRatesIsALowerBoundAndSaysSo) {
  for (const auto& [forget, said] : std::vector<std::pair<void (*)(MachineProfile&), const char*>>{
           {[](MachineProfile& machine) { machine.device_flops = 0; }, "without compute"},
           {[](MachineProfile& machine) { machine.host_gbps = 0; }, "without updates"},
           {[](MachineProfile& machine) { machine.host_gbps = machine.device_flops = 0; },
            "without updates and compute"},
       }) {
    ForecastRequest request = request_for("gpt2", "cpu-2core");
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
  ForecastRequest request = request_for("llama-2-7b", "8h200-8gen5");
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
        ForecastRequest request = request_for("gpt2", machine);
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
    ForecastRequest request = request_for("gpt2", "cpu-2core");
    spoil(request);
    const Result<Forecast> result = forecast(request);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::kUsage);
  }
}

// Half a million moves whose kinds take turns, on every lane.
TEST(Gantt, HasNoMoreBarsThanColumnsHoweverManyMovesThereAre) {
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4");
  request.record_spans = true;
  const Forecast result = forecast_of(request);
  Simulation busy = result.simulation;
  const auto moves = static_cast<MoveId>(result.plan->moves.size());
  const double shown_s = 1.75 * busy.step_s, from_s = busy.steps[busy.steps.size() / 2].begin_s - 0.25 * busy.step_s;
  busy.spans.clear();
  constexpr uint64_t kMany = 500'000;
  for (uint64_t i = 0; i < kMany; ++i) {
    const double at_s = from_s + shown_s * static_cast<double>(i) / kMany;
    busy.spans.push_back({busy.steps.size() / 2, static_cast<MoveId>(i * 7919 % moves), at_s, at_s + shown_s / kMany});
  }
  EXPECT_LT(gantt_svg(*result.plan, busy, "busy").size(), 1'000'000u);
}

TEST(Gantt, ShowsEveryLaneThatIsBusy) {
  ForecastRequest request = request_for("gpt2", "rtx4090-2gen4");
  request.choices.host_state_share = 0;
  request.choices.weights = WeightTier::nvme;
  request.record_spans = true;
  const Forecast result = forecast_of(request);
  const std::string svg = gantt_svg(*result.plan, result.simulation, "gpt2\x1b <on> a desktop");
  for (const char* part : {"<svg", "nvme_read", "nvme_write", "update", "compute", "host_to_device", "device_to_host",
                           "gpt2? &lt;on&gt;", "begins", "</svg>"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  EXPECT_LT(svg.size(), 2'000'000u);
}

// More of anything is never slower. A plan's pipeline fills in whole tiles, which is worth a little either way.
constexpr double kTileEffects = 1.03;

ForecastRequest random_request(std::mt19937_64& random) {
  auto up_to = [&](uint64_t n) { return random() % (n + 1); };
  static const char* const kMachines[] = {"rtx4090-2gen4", "h100-4gen4", "8h200-8gen5", "cpu-2core"};
  ForecastRequest request = request_for("gpt2", kMachines[up_to(3)]);
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

// In host memory, state is updated in place, and so only when it is known whether gradients are clipped.
TEST(Forecast, HostMemoryThatWouldDelayUpdatesIsLeftUnused) {
  ForecastRequest request = request_for("gpt2-xl", "rtx4090-2gen4");
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
