// The step before a store's newest. Its root is still there, and so is all that it names until the next step writes
// over it: where the newest has rotted on the drive, nothing but that step is lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"
#include "tiering/status.h"

namespace penstock::engine {

// Its number, if every block of it is what was written; none where there is no such step, or where the store is one of
// several ranks, which would have to go back together. Reads all of it, and writes nothing. `newest`: of the store.
Result<std::optional<uint64_t>> whole_step_before(uint64_t newest, const std::vector<std::string>& folders,
                                                  const aio::ScrubProgress& progress = {});

// Makes `step` the store's newest, by one root on each drive. REQUIRES: whole_step_before() named it, and no run since.
Status go_back_to_step_before(uint64_t step, const std::vector<std::string>& folders);

}  // namespace penstock::engine
