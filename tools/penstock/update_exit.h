// What a run of `penstock update` that ends with a step that is not durable has left to write: predicted before its
// first step, and its share in the time of each.
#pragma once

#include "runtime/engine/engine.h"
#include "tools/penstock/verb.h"
#include "tools/plan/exit_commit.h"

namespace penstock::tools {

class ExitShare {
 public:
  // Of an engine that goes on for `steps` steps, up to step `last`.
  ExitShare(const engine::Engine& engine, uint64_t steps, uint64_t last);

  // What its commit adds to each step's predicted time.
  double predicted_step_s() const;
  // A line before the first step; empty where nothing is left to write.
  std::string predicted_text() const;
  // The line after the last, where the commit took so long.
  std::string taken_text(double seconds) const;
  Json json(double seconds) const;

 private:
  const uint64_t steps_;
  std::optional<ExitCommit> commit_;
};

}  // namespace penstock::tools
