// crash_image: what a file may hold if the power fails after the first so many events of a log.
//
// A write is safe once a flush of its drive has ended well that was submitted after the write had ended. Of every other
// write that had been submitted, whole blocks of 4 KiB may have arrived, in any combination: that is all a drive
// promises.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/support/recording_backend.h"

namespace penstock::aio {

enum class Unsafe {
  kept,    // what was not flushed has arrived all the same
  lost,    // none of it has
  chance,  // each block by itself
};

struct Crash {
  size_t events = 0;  // how many of the log had happened
  Unsafe unsafe = Unsafe::chance;
  uint64_t seed = 1;
};

// `before` is what the file held when the log began.
std::vector<std::byte> crash_image(const IoLog& log, const File& file, std::span<const std::byte> before,
                                   const Crash& crash);

}  // namespace penstock::aio
