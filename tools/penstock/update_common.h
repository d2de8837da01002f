// Shared by `penstock update` and `penstock verify`: their flags, and the run that follows from them.
#pragma once

#include <memory>

#include "tools/penstock/options.h"
#include "tools/penstock/verb.h"
#include "tools/update/plain_run.h"
#include "tools/update/update_run.h"

namespace penstock::tools {

struct UpdateFlags {
  std::optional<uint64_t> parameters;  // none: those of the store, else kParametersUsual
  uint64_t steps = 6;
  uint64_t seed = 1;
  std::string stores;
  std::string budget = "host=256MiB";
  std::string machine;                   // a profile's path; empty: measured at start
  std::optional<Durability> durability;  // empty: automatic
  std::string space = "double";
  double strike_share = 0;
  uint64_t tile_elements = 0;
  uint64_t threads = 0;
  std::string engine = "auto";
  bool force = false;

  static constexpr uint64_t kParametersUsual = 250'000'000;
};

void update_options(Options& options, UpdateFlags& flags);
// Opens the store, and creates it if there is none. Steps are predicted from a profile, or from a short measurement of
// the drives; they are not predicted where the drives are too full for that.
Result<std::unique_ptr<UpdateRun>> open_update_run(Session& session, const UpdateFlags& flags);
// How many the run has, before it is opened. Refuses a store that is no run of theirs.
Result<uint64_t> parameters_of_run(Session& session, const UpdateFlags& flags);
// What `verify` answers.
Answer answer_to_comparison(const Comparison& comparison, uint64_t steps);
// Runs until step `until` is done; `each` hears of every step as it ends. Interrupted by the user, it commits the last
// step and says so in the status.
Status run_steps(Session& session, UpdateRun& run, uint64_t until,
                 const std::function<void(const engine::StepReport&)>& each = {});

}  // namespace penstock::tools
