// How fast a device updates tiles that rest in its memory: what the planner times its own updates with.
#pragma once

#include "tiering/device.h"

namespace penstock::tools {

// GB/s, read and written, of one AdamW step in the usual form over the whole of the device's memory; the best of
// `rounds`. REQUIRES: nothing else is in its memory, which holds at least kBlockElements elements with their state.
Result<double> measure_device_updates(Device& device, int rounds);

}  // namespace penstock::tools
