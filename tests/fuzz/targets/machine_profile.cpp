#include "tiering/plan/machine_profile.h"

#include <cmath>

#include "tests/fuzz/target.h"
#include "tests/fuzz/targets/forecasting.h"
#include "tiering/store/store_layout.h"
#include "tools/machine/machine_file.h"
#include "tools/machine/shipped_machines.h"

namespace penstock::fuzz {
namespace {

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (MachineProfile& machine : shipped_profiles()) {
    machine.drives.resize(std::min<size_t>(machine.drives.size(), 2));  // short, so that accidents hit everything
    machine.drives[0].by_memory = MemoryCurve({{16 * kMiB, 1.0}, {64 * kMiB, 0.5}});
    all.push_back(bytes_of(to_json(machine)));
  }
  MachineProfile bare;
  bare.drives.push_back(
      {.path = "/mnt/a", .device = "sda", .burst = MixCurve::flat(1), .sustained = {}, .by_memory = {}});
  all.push_back(bytes_of(to_json(bare)));
  return all;
}

std::string rates_of(const MachineProfile& machine) {
  for (const double share : {0.0, 0.3, 0.5, 1.0}) {
    for (const DriveRates& drive : machine.drives) {
      if (!(drive.rates().gbps(share) > 0) || !(drive.burst.gbps(share) > 0)) return "a drive that moves nothing";
    }
    if (!machine.drives.empty() && !std::isfinite(machine.striped().gbps(share))) return "drives without a rate";
  }
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, kGiB, ~uint64_t{0}}) {
    const double share = machine.share_by_memory(bytes);
    if (!(share > 0 && share <= 1.000001)) return text("a share by memory of ", share);
  }
  const auto drives = static_cast<uint32_t>(machine.drives.size());
  if (drives == 0) return "";
  for (const uint32_t share : shares_of(machine.step_rates(drives), drives)) {
    if (share == 0 || share > kShareWhole) return "a drive's share of nothing, or of more than all";
  }
  return "";
}

std::string run(std::span<const std::byte> input) {
  const Result<MachineProfile> machine = parse_machine_profile(text_of(input));
  if (!machine.ok()) return machine.status().remedy().empty() ? "refused without a way out" : "";
  const std::string json = to_json(*machine);
  const Result<MachineProfile> again = parse_machine_profile(json);
  if (!again.ok()) return "written again it is refused: " + again.status().message();
  // Microseconds of latency are rounded once.
  const Result<MachineProfile> thrice = parse_machine_profile(to_json(*again));
  if (!thrice.ok() || to_json(*thrice) != to_json(*again)) return "written again it is another";
  if (std::string wrong = rates_of(*machine); !wrong.empty()) return wrong;
  for (const StepScope scope : {StepScope::update_only, StepScope::training}) {
    tools::ForecastRequest request = request_of(tiny_model(), *machine);
    request.scope = scope;
    request.tokens = 8192;
    request.sequence = 8;
    request.micro_batches = 2;
    request.clipping = {.norm = 1, .strike_share = 0.1};
    if (std::string wrong = predict(request); !wrong.empty()) return wrong;
  }
  return "";
}

constexpr std::string_view kWords[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "null",
                                       "true",
                                       "\"x\"",
                                       "{}",
                                       "[]",
                                       "[0.5, 3]",
                                       "[[0.5, 3.0]]",
                                       "drives",
                                       "mix_curve",
                                       "devices",
                                       "flush_s",
                                       "threads",
                                       "endurance_bytes",
                                       "p50",
                                       "host_gbps",
                                       "device_flops",
                                       "rate_by_memory",
                                       "sustained_mix_curve",
                                       "latency_us",
                                       "free_bytes",
                                       "host_bytes",
                                       "collective_gbps",
                                       "network_gbps",
                                       "host_to_device_gbps"};

}  // namespace

const Target machine_profile{
    .name = "machine_profile", .seeds = seeds, .run = run, .words = kWords, .rounds = 3000, .memory_bytes = 32 * kMiB};

}  // namespace penstock::fuzz
