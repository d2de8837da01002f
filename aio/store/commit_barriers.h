// CommitBarriers let several ranks commit together: what every rank has flushed is real, or nothing is.
#pragma once

#include <functional>

#include "tiering/status.h"

namespace penstock::aio {

// Each function is called once per commit, at the point its name says, with this rank's outcome. It must call the
// continuation once, immediately or later on the same thread, with the verdict of all ranks. Empty: a single rank.
struct CommitBarriers {
  using Continue = std::function<void(Status verdict)>;
  using Barrier = std::function<void(Status mine, Continue)>;
  Barrier data_flushed;
  Barrier root_flushed;
};

}  // namespace penstock::aio
