// UringBackend moves pieces through one io_uring, with registered buffers and files where the kernel grants them.
//
// The ring is set up for one thread that runs its own completions (SINGLE_ISSUER and DEFER_TASKRUN), or as much of that
// as the kernel supports. There is no polling thread: with requests of 1 MiB one core is far from busy, and where
// threads outnumber cores a polling thread starves the thread that it polls for.
#pragma once

#include <memory>

#include "aio/backend.h"
#include "tiering/status.h"

namespace penstock::aio {

// Returns a ring that has passed a real read. Otherwise the refusal says why: the build has no liburing, the kernel is
// old, seccomp or io_uring_disabled forbids it.
Result<std::unique_ptr<IoBackend>> make_uring_backend(uint32_t capacity = 256);

}  // namespace penstock::aio
