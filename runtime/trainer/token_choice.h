// Which token comes next: a pure function of the logits, the rules and the number of the draw.
#pragma once

#include <cstdint>
#include <span>

namespace penstock::trainer {

struct ChoiceRules {
  double temperature = 0;  // 0: always the likeliest
  uint64_t top_k = 0;      // of the likeliest; 0: all
  double top_p = 1;        // the likeliest that have this share of the probability together

  bool operator==(const ChoiceRules&) const = default;
};

// By element `index` of stream `key`. Of equals the first is the likelier; what is not a number is never chosen.
// REQUIRES: there is a logit.
int32_t choose_token(std::span<const float> logits, const ChoiceRules& rules, uint64_t key, uint64_t index);

}  // namespace penstock::trainer
