// A device of LibTorch's in host memory that orders its work as a GPU does: operations go to streams, which are threads
// that take their time by a seed, and the host goes on until it asks for a value. Its tensors are no CPU tensors, so
// that what forgets to say where a tensor shall be is refused. Memory is noise until it is filled, and again once the
// stream that it was taken on comes to where it was freed.
//
// LibTorch knows it as PrivateUse1; every operation is the CPU's, and the host waits for it, which a GPU's kernels do
// not ask of it. So what is wrong with the order of operations seldom shows in their values: stream_device_order()
// judges it. A stream's native handle is a gpu::HostStream, which the host device of the engine takes.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "tests/support/access_order.h"

namespace penstock::test {

// Registers it with LibTorch when it is called first. `seed`: of the delays from now on.
c10::Device stream_device(uint64_t seed);

// What operations have waited for, so far: values that the host has asked for are among them.
uint64_t stream_device_operations();

// What tensors are read and written by, on which stream; for the engine's device on the same streams, too.
AccessOrder& stream_device_order();

}  // namespace penstock::test
