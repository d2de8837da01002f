// The line of a step for a terminal, which cuts it where it ends.
#include <algorithm>
#include <array>
#include <cstdio>

#include "tools/penstock/quantity.h"
#include "tools/train/run_report.h"

namespace penstock::tools {
namespace {

constexpr double kShareShown = 0.01;

std::string short_text(double number) {
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.3g", number);
  return digits.data();
}

std::string percent(double share) { return text(fixed(share * 100, 0), " %"); }

std::string rates_of(const StepWork& work, const engine::StepReport& report) {
  const auto rate = [&](uint64_t bytes) { return fixed(static_cast<double>(bytes) / report.wall_s / 1e9, 2); };
  std::string all = text("; drives ", rate(report.read_bytes), " GB/s read, ", rate(report.written_bytes), " written");
  if (work.up_bytes + work.down_bytes > 0) {
    all += text("; link ", rate(work.up_bytes), " GB/s up, ", rate(work.down_bytes), " down");
  }
  if (work.flops > 0) all += text("; ", short_text(work.flops / report.wall_s / 1e12), " TFLOP/s");
  if (const double mfu = work.mfu(report.wall_s); mfu > 0) all += text(", MFU ", short_text(mfu * 100), " %");
  return all;
}

// The lanes that the step waited for, the longest first. With nothing under way, the engine's threads had yet to run.
std::string waits_of(const engine::StepReport& report) {
  std::vector<std::pair<double, Lane>> waits;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const double share = report.stall_s[lane] / report.wall_s;
    if (share >= kShareShown) waits.emplace_back(share, static_cast<Lane>(lane));
  }
  std::ranges::sort(waits, std::greater());
  std::string all = waits.empty() ? "; waited for nothing" : "; waited";
  for (size_t i = 0; i < waits.size(); ++i) {
    all += text(i > 0 ? ", " : " ", percent(waits[i].first), " for ",
                waits[i].second == Lane::none ? "the engine" : name_of(waits[i].second));
  }
  return all;
}

}  // namespace

std::string progress_of(const TrainingSettings& settings, const StepWork& work, const trainer::TrainingRun::Step& step,
                        double left_s) {
  const engine::StepReport& report = step.report;
  const double least_s = floor_s(settings, work, report);
  return text("step ", report.step, ", loss ", fixed(step.loss, 3), ", ",
              left_s >= 1 ? seconds_text(left_s) + " to go, " : std::string(), fixed(work.tokens / report.wall_s, 0),
              " tokens/s, ", fixed(report.wall_s, 2), " s",
              report.predicted_s > 0 ? text(", predicted ", fixed(report.predicted_s, 2)) : "",
              least_s > 0 ? text(", at least ", fixed(least_s, 2), " (", percent(least_s / report.wall_s), ")") : "",
              "; lr ", short_text(step.learning_rate), ", norm ", short_text(report.gradient_norm),
              rates_of(work, report), waits_of(report));
}

}  // namespace penstock::tools
