#include "runtime/trainer/loss_rules.h"

#include <algorithm>
#include <cmath>

namespace penstock::trainer {
namespace {

constexpr double kDeviationsOfMedian = 1.4826;  // 1 / the 0.75 quantile of the normal distribution
constexpr double kDeviationLeastShare = 0.02;

// Of an even number the mean of the middle two. REQUIRES: there are some.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t upper = values.size() / 2;
  return values.size() % 2 == 1 ? values[upper] : (values[upper - 1] + values[upper]) / 2;
}

}  // namespace

const char* name_of(LossAction action) {
  switch (action) {
    case LossAction::ignore:
      return "ignore";
    case LossAction::stop:
      return "stop";
    case LossAction::skip:
      return "skip";
    case LossAction::lower_rate:
      return "lower_rate";
    case LossAction::rollback:
      return "rollback";
  }
  return "";
}

std::optional<double> highest_loss(const LossRules& rules, const LossRulesState& state) {
  if (rules.spike == LossAction::ignore || state.losses.size() < rules.window) return std::nullopt;
  const double middle = median(state.losses);
  std::vector<double> distances;
  for (const double loss : state.losses) distances.push_back(std::abs(loss - middle));
  const double deviation =
      std::max(kDeviationsOfMedian * median(std::move(distances)), kDeviationLeastShare * std::abs(middle));
  return middle + rules.deviations * deviation;
}

LossTrouble trouble_of(const LossRules& rules, const LossRulesState& state, double loss) {
  if (!std::isfinite(loss)) return LossTrouble::not_finite;
  const std::optional<double> highest = highest_loss(rules, state);
  return highest && loss > *highest ? LossTrouble::spike : LossTrouble::none;
}

LossAction action_on(const LossRules& rules, const LossRulesState& state, LossTrouble trouble) {
  if (trouble == LossTrouble::none) return LossAction::ignore;
  const LossAction named = trouble == LossTrouble::spike ? rules.spike : rules.not_finite;
  const bool leaves_out = named != LossAction::ignore && named != LossAction::stop;
  return leaves_out && state.acted >= rules.at_most ? LossAction::stop : named;
}

double rate_factor_of(const LossRulesState& state, uint64_t step) {
  return state.lowered_until == 0 || step <= state.lowered_until ? state.rate_factor : 1;
}

void let_pass(const LossRules& rules, double loss, LossRulesState& state) {
  if (rules.spike == LossAction::ignore || !std::isfinite(loss)) return;
  state.losses.push_back(loss);
  // A window of another run on the store may have been longer.
  const size_t over = state.losses.size() - std::min<size_t>(state.losses.size(), rules.window);
  state.losses.erase(state.losses.begin(), state.losses.begin() + static_cast<std::ptrdiff_t>(over));
}

void acted(const LossRules& rules, LossAction action, uint64_t step, LossRulesState& state) {
  ++state.acted;
  if (action != LossAction::lower_rate) return;
  state.rate_factor = rate_factor_of(state, step) * rules.rate_factor;
  state.lowered_until = rules.rate_steps == 0 ? 0 : step + rules.rate_steps - 1;
}

}  // namespace penstock::trainer
