// Steps of one configuration, which bench predict compares with what the simulator says of them.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tiering/plan/machine_profile.h"
#include "tiering/status.h"

namespace penstock::bench {

class ConfiguredSteps {
 public:
  virtual ~ConfiguredSteps() = default;

  virtual std::string words() const = 0;
  virtual Status create(const MachineProfile& machine, const std::vector<std::string>& folders) = 0;
  virtual Status open() = 0;
  virtual void close() = 0;
  // The last one's tail too.
  virtual Status take(int steps) = 0;
  // What the last so many take together by the simulator, on a machine whose drives give what they give in `now`.
  // REQUIRES: none was taken before them since the run was opened.
  virtual double predicted_s(const MachineProfile& now, int steps) = 0;
};

// Of about so many parameters.
std::unique_ptr<ConfiguredSteps> random_updates(std::mt19937_64& random, uint64_t parameters);
std::unique_ptr<ConfiguredSteps> random_whole_steps(std::mt19937_64& random, uint64_t parameters);

}  // namespace penstock::bench
