// LibaioBackend moves pieces through the kernel's older asynchronous interface, for kernels and containers without
// io_uring. It calls the kernel itself: newer versions of the library of that name use a call that container profiles
// forbid, and do not fall back.
#pragma once

#include <memory>

#include "aio/backend.h"
#include "tiering/status.h"

namespace penstock::aio {

Result<std::unique_ptr<IoBackend>> make_libaio_backend(uint32_t capacity = 256);

}  // namespace penstock::aio
