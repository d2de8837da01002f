#include "aio/write_once.h"

#include <algorithm>
#include <cstring>

#include "aio/windowed_io.h"

namespace penstock::aio {

Status write_once(const File& file, IoEngine& engine, BufferPool& pool, const Fill& fill) {
  WindowedIo windowed(engine, pool);
  for (uint64_t offset_bytes = 0; offset_bytes < file.size_bytes();) {
    PENSTOCK_TRY_ASSIGN(window, windowed.free_window());
    const uint64_t length_bytes = std::min(window.size_bytes(), file.size_bytes() - offset_bytes);
    const std::span<std::byte> block = window.bytes().first(length_bytes);
    if (fill) {
      fill(offset_bytes, block);
    } else {
      std::memset(block.data(), 0, block.size());
    }
    const Extent extent{&file, offset_bytes, 0, length_bytes};
    windowed.write({&extent, 1}, std::move(window));
    offset_bytes += length_bytes;
  }
  PENSTOCK_TRY(windowed.finish());
  return engine.flush(file).wait().status();
}

}  // namespace penstock::aio
