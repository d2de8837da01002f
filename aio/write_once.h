// A file's blocks, written for the first time: that costs more than writing them again, and may still find the drive
// full.
#pragma once

#include <functional>
#include <span>

#include "tiering/io_engine.h"

namespace penstock::aio {

// Fills `block`, which is then written at `offset_bytes` of the file.
using Fill = std::function<void(uint64_t offset_bytes, std::span<std::byte> block)>;

// Writes every block of `file` once and flushes. It uses the engine and whatever pieces of `pool` are free, so its
// memory is bounded by the pool. Without `fill` the blocks are zeros.
Status write_once(const File& file, IoEngine& engine, BufferPool& pool, const Fill& fill = {});

}  // namespace penstock::aio
