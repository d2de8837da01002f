#include "bench/support/steps.h"

namespace penstock::bench {

Status take_steps(tools::UpdateRun& run, int count) {
  for (int i = 0; i < count; ++i) PENSTOCK_TRY(run.step().status());
  // Settling makes the last step durable, which those that need not be are not to pay for.
  const bool is_durable = run.engine().plan().durability.kind == Durability::Kind::step;
  return is_durable ? run.engine().settle() : Status();
}

}  // namespace penstock::bench
