#include "runtime/trainer/token_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/trainer/counter_random.h"
#include "tiering/check.h"

namespace penstock::trainer {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float usable(float logit) { return std::isnan(logit) ? kNever : logit; }

}  // namespace

int32_t choose_token(std::span<const float> logits, const ChoiceRules& rules, uint64_t key, uint64_t index) {
  CHECK(!logits.empty(), "nothing to choose from");
  const auto likelier = [&](int32_t one, int32_t other) {
    const float a = usable(logits[static_cast<size_t>(one)]), b = usable(logits[static_cast<size_t>(other)]);
    return a != b ? a > b : one < other;
  };
  std::vector<int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  if (rules.temperature == 0) return *std::min_element(tokens.begin(), tokens.end(), likelier);
  const size_t most = rules.top_k == 0 ? tokens.size() : std::min<size_t>(rules.top_k, tokens.size());
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(most), tokens.end(), likelier);
  tokens.resize(most);
  // One that is infinite leaves nothing to the others.
  const double largest = usable(logits[static_cast<size_t>(tokens.front())]);
  if (!std::isfinite(largest)) return tokens.front();
  std::vector<double> sums;
  double sum = 0;
  for (const int32_t token : tokens)
    sums.push_back(sum += std::exp((usable(logits[static_cast<size_t>(token)]) - largest) / rules.temperature));
  const auto kept = std::lower_bound(sums.begin(), sums.end(), rules.top_p * sum);
  const double all = kept == sums.end() ? sum : *kept;
  const double drawn = stream_bits(key, index) / 4294967296.0 * all;
  const auto place = std::upper_bound(sums.begin(), sums.end(), drawn);
  return tokens[std::min<size_t>(static_cast<size_t>(place - sums.begin()), tokens.size() - 1)];
}

}  // namespace penstock::trainer
