#include "tools/plan/relief.h"

#include <algorithm>

namespace penstock::tools {
namespace {

constexpr Lane kLanesRelieved[] = {Lane::host_to_device, Lane::device_to_host, Lane::update, Lane::collective,
                                   Lane::compute};

double mean_step_s(Plan plan, const MachineProfile& machine, SimulationOptions options) {
  options.record_spans = false;
  const double share = plan.durability.durable_share();
  auto step_s = [&](Durability::Kind kind) {
    plan.durability = {kind, 1};
    return simulate(plan, machine, options).step_s;
  };
  double mean_s = 0;
  if (share > 0) mean_s += share * step_s(Durability::Kind::step);
  if (share < 1) mean_s += (1 - share) * step_s(Durability::Kind::exit);
  return mean_s;
}

MachineProfile with_faster_drives(MachineProfile machine) {
  for (DriveRates& drive : machine.drives) {
    drive.burst = drive.burst.scaled(kReliefFaster);
    if (drive.sustained) drive.sustained = drive.sustained->scaled(kReliefFaster);
    drive.flush_s /= kReliefFaster;
  }
  return machine;
}

// The rate that a lane's moves are timed with; none of compute, whose moves have a time of their own.
double* rate_of(MachineProfile& machine, Lane lane) {
  switch (lane) {
    case Lane::host_to_device:
      return &machine.host_to_device_gbps;
    case Lane::device_to_host:
      return &machine.device_to_host_gbps;
    case Lane::update:
      return &machine.host_gbps;
    case Lane::collective:
      return &machine.collective_gbps;
    default:
      return nullptr;
  }
}

Plan with_faster_compute(Plan plan) {
  for (Move& move : plan.moves) {
    if (move.lane == Lane::compute) move.seconds /= kReliefFaster;
  }
  return plan;
}

}  // namespace

std::vector<Relief> find_reliefs(const Plan& plan, const MachineProfile& machine, const SimulationOptions& options) {
  const double usual_s = mean_step_s(plan, machine, options);
  std::vector<Relief> reliefs = {{"drives", usual_s - mean_step_s(plan, with_faster_drives(machine), options)}};
  for (const Lane lane : kLanesRelieved) {
    const bool is_used =
        std::any_of(plan.moves.begin(), plan.moves.end(), [lane](const Move& move) { return move.lane == lane; });
    if (!is_used) continue;
    MachineProfile faster = machine;
    double* const rate = rate_of(faster, lane);
    if (rate != nullptr) *rate *= kReliefFaster;
    if (lane == Lane::collective) faster.network_gbps *= kReliefFaster;
    const double step_s = mean_step_s(rate != nullptr ? plan : with_faster_compute(plan), faster, options);
    reliefs.push_back({name_of(lane), usual_s - step_s});
  }
  std::stable_sort(reliefs.begin(), reliefs.end(),
                   [](const Relief& a, const Relief& b) { return a.saved_s > b.saved_s; });
  return reliefs;
}

std::string bottleneck_of(const std::vector<Relief>& reliefs, double step_s) {
  if (reliefs.empty()) return "unknown";
  // A tenth of the relief that a resource would bring which is used without a pause.
  const double least_s = 0.1 * (1 - 1 / kReliefFaster) * step_s;
  return reliefs.front().saved_s > least_s ? reliefs.front().resource : "order";
}

}  // namespace penstock::tools
