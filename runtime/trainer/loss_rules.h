// Loss rules say what becomes of a batch whose loss or gradients are not finite, or whose loss jumps: before anything
// is learnt from it.
//
// A loss is a spike where it is above the median of the last `window` losses that were let pass, by more than
// `deviations` deviations. A deviation is 1.4826 times the median of their distances from that median, which is the
// standard deviation where losses are normally distributed; but at least 2 % of the median, so that losses which hardly
// differ are no reason to act. Until so many losses have been let pass nothing is a spike.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::trainer {

// What is done about a batch.
enum class LossAction : uint8_t {
  ignore,      // it is learnt from
  stop,        // the run ends with the step before
  skip,        // it is left out, and the next batch takes its step
  lower_rate,  // the same, and the learning rate is lowered
  rollback,    // all batches since the newest snapshot are left out, and the run goes on from there
};

const char* name_of(LossAction action);

enum class LossTrouble : uint8_t {
  none,
  not_finite,
  spike,
  gradients,  // the loss is finite, its gradients are not: the same is done as about a loss that is not
};

struct LossRules {
  LossAction not_finite = LossAction::stop;
  LossAction spike = LossAction::ignore;
  uint32_t window = 64;
  double deviations = 10;
  double rate_factor = 0.5;  // of lower_rate: what the rate is multiplied by, each time
  uint64_t rate_steps = 0;   // how many steps it stays so, from the one that it was lowered at; 0: the rest of the run
  uint32_t at_most = 20;     // times that rules may leave batches out; then the run stops

  bool has(LossAction action) const { return not_finite == action || spike == action; }
  bool operator==(const LossRules&) const = default;
};

struct LossRulesState {
  std::vector<double> losses = {};  // that were let pass, the oldest first; none where no spike is looked for
  uint64_t acted = 0;               // times that batches were left out
  double rate_factor = 1;
  uint64_t lowered_until = 0;  // the last step with that factor; 0: all

  bool operator==(const LossRulesState&) const = default;
};

// The most that a loss may be; none: nothing is a spike yet, or is looked for.
std::optional<double> highest_loss(const LossRules& rules, const LossRulesState& state);

LossTrouble trouble_of(const LossRules& rules, const LossRulesState& state, double loss);

// The action that the rules name, or `stop` where they have acted as often as they may.
LossAction action_on(const LossRules& rules, const LossRulesState& state, LossTrouble trouble);

// What the step's learning rates are multiplied by.
double rate_factor_of(const LossRulesState& state, uint64_t step);

// After a loss that was let pass.
void let_pass(const LossRules& rules, double loss, LossRulesState& state);

// A batch of the step has been left out, by `action`.
void acted(const LossRules& rules, LossAction action, uint64_t step, LossRulesState& state);

}  // namespace penstock::trainer
