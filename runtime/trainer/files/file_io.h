// Whole reads and writes at an offset, and small files as strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tiering/status.h"

namespace penstock::trainer {

Status read_all(int descriptor, const std::string& path, uint64_t offset_bytes, std::span<std::byte> into);
Status write_all(int descriptor, const std::string& path, uint64_t offset_bytes, std::span<const std::byte> bytes);

// Refuses files larger than `most_bytes`.
Result<std::string> read_small_file(const std::string& path, uint64_t most_bytes);
// Makes the file, or replaces what it holds.
Status write_small_file(const std::string& path, const std::string& content);

}  // namespace penstock::trainer
