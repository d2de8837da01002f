// UringBackend moves pieces through one io_uring, with registered buffers and files where it got them.
//
// The ring is set up for one thread that runs its own completions (SINGLE_ISSUER and DEFER_TASKRUN), or as much of that
// as the kernel knows. No polling thread: at 1 MiB a request one core is far from busy, and where threads outnumber
// cores a poller starves whoever it works for.
#pragma once

#include <memory>

#include "aio/backend.h"
#include "tiering/status.h"

namespace penstock::aio {

// A ring, tried out by a real read; or why there is none (built without, old kernel, seccomp, io_uring_disabled).
Result<std::unique_ptr<IoBackend>> make_uring_backend(uint32_t capacity = 256);

}  // namespace penstock::aio
