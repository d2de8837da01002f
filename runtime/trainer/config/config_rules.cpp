#include "runtime/trainer/config/config_rules.h"

#include <vector>

namespace penstock::trainer {

std::span<const KeyRule> config_rules() {
  static const std::vector<KeyRule> rules = [] {
    std::vector<KeyRule> all(penstock_keys().begin(), penstock_keys().end());
    all.insert(all.end(), deepspeed_keys().begin(), deepspeed_keys().end());
    return all;
  }();
  return rules;
}

}  // namespace penstock::trainer
