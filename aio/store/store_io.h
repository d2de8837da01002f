// Blocking I/O on the files of a store, for rare work: making, opening and inspecting one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tiering/io_engine.h"
#include "tiering/status.h"

namespace penstock::aio {

// One for each drive, in the order of the drives' numbers.
using StoreFiles = std::vector<std::unique_ptr<File>>;

Result<Buffer> read_bytes(IoEngine& engine, const File& file, uint64_t offset_bytes, uint64_t length_bytes);
// `bytes` need no alignment; the last sector is filled up with zeros.
Status write_bytes(IoEngine& engine, const File& file, uint64_t offset_bytes, std::span<const std::byte> bytes);
Status write_on_all(IoEngine& engine, const StoreFiles& files, uint64_t offset_bytes, std::span<const std::byte> bytes);
Status flush_all(IoEngine& engine, const StoreFiles& files);

}  // namespace penstock::aio
