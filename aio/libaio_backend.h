// LibaioBackend does file I/O through libaio, the kernel's older asynchronous interface, for kernels and containers
// without io_uring.
#pragma once

#include <memory>

#include "aio/backend.h"
#include "tiering/status.h"

namespace penstock::aio {

// Refuses when the build has no libaio, or the kernel refuses a context or a question to it.
Result<std::unique_ptr<IoBackend>> make_libaio_backend(uint32_t capacity = 256);

}  // namespace penstock::aio
