#include "bench/support/run_simulation.h"

namespace penstock::bench {
namespace {

// Gradients that strike are twice as large as the clip.
constexpr double kStrikeKnownAt = 0.25;

}  // namespace

SimulationOptions simulation_options(const tools::UpdateRun& run, const Plan& plan, uint64_t opened_at, uint64_t done,
                                     uint32_t steps) {
  SpeculationPolicy policy;
  for (uint64_t step = opened_at + 1; step <= done; ++step) policy.learn(run.strikes(step));
  std::vector<bool> strikes, speculates;
  for (uint64_t step = done + 1; step <= done + steps; ++step) {
    speculates.push_back(policy.speculate());
    strikes.push_back(run.strikes(step));
    policy.learn(strikes.back());
  }
  SimulationOptions options;
  options.steps = steps;
  options.verdict = [strikes](uint64_t step) { return strikes[step] ? Verdict::strike : Verdict::confirm; };
  options.speculate = [speculates](uint64_t step) -> bool { return speculates[step]; };
  options.strike_known_at = kStrikeKnownAt;
  // The trainer copies and measures a gradient: a memory pass over it.
  const double host_gbps = run.options().request.machine.host_gbps;
  options.gradient_s = [&plan, host_gbps](TileId tile) {
    return 3.0 * static_cast<double>(plan.tiles[tile].gradient_bytes) / (host_gbps * 1e9);
  };
  return options;
}

}  // namespace penstock::bench
