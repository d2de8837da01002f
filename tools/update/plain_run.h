// PlainRun runs the steps of an UpdateRun without the engine, in memory, with the plain loop. `penstock verify`
// compares the engine with it.
#pragma once

#include <optional>
#include <string>

#include "tools/update/plain_loop.h"
#include "tools/update/update_run.h"

namespace penstock::tools {

struct Comparison {
  uint64_t tensors = 0;
  uint64_t words_compared = 0;
  uint64_t words_different = 0;
  struct Difference {
    std::string tensor;
    uint64_t index = 0;
    uint32_t tiered = 0, plain = 0;
  };
  std::optional<Difference> first;

  // Adds what was found under a name of its own.
  void add(const Comparison& found, const std::string& name);
};

class PlainRun {
 public:
  explicit PlainRun(const UpdateRun& run);
  static uint64_t bytes_needed(uint64_t parameters) { return parameters * 14 + (uint64_t{64} << 20); }

  void step();
  uint64_t steps_done() const { return steps_; }
  // Every word of weight, low half, momentum and variance, unit after unit.
  Result<Comparison> compare(engine::Engine& engine) const;

 private:
  const UpdateRun& run_;
  std::vector<plain::Unit> units_;
  plain::Settings settings_;
  uint64_t steps_ = 0, updates_ = 0;
};

}  // namespace penstock::tools
