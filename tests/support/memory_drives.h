// The drives of a run, in memory: what was written is in the folders, whoever opens them next.
#pragma once

#include <memory>
#include <vector>

#include "aio/queued_io_engine.h"
#include "runtime/engine/engine.h"
#include "tests/support/memory_backend.h"
#include "tests/support/memory_folder.h"

namespace penstock::test {

inline Result<engine::Drives> drives_in_memory(
    const std::vector<std::shared_ptr<aio::MemoryFolder>>& folders,
    std::unique_ptr<aio::IoBackend> backend = std::make_unique<aio::MemoryBackend>()) {
  engine::Drives drives;
  drives.io = std::make_unique<aio::QueuedIoEngine>(std::move(backend));
  drives.folders.assign(folders.begin(), folders.end());
  drives.description = "memory";
  return drives;
}

}  // namespace penstock::test
