// Whether drives should fill device memory directly on this machine: measured, since a library that is there may take
// the way through host memory itself, and a slower one.
#pragma once

#include <string>

#include "gpu/direct_storage.h"
#include "tiering/device.h"

namespace penstock::gpu {

struct DirectStorageProbe {
  double direct_bytes_per_s = 0;  // 0: it was not measured, and the explanation says why
  double bounce_bytes_per_s = 0;
  bool is_used = false;
  std::string explanation;  // for people: "GPUDirect Storage: 6.1 GB/s against 5.2 through host memory: used"
};

// Nothing below this is worth a second way for bytes to go.
constexpr double kDirectStorageGain = 1.1;

struct DirectStorageWays {
  Device& device;
  IoEngine& engine;  // of the way through host memory
  BufferPool& host;  // whose pieces, registered with both, it goes through
  const File& file;  // read from its beginning, as much as the device's arena holds
  std::string library = "libcufile.so.0";
};

// Reads the same bytes both ways in turn, some rounds, and compares them: a way that brings other bytes is not used.
// Overwrites the device's arena. Refused only where the way through host memory is.
// REQUIRES: nothing else uses device or engine meanwhile.
Result<DirectStorageProbe> probe_direct_storage(const DirectStorageWays& ways);

}  // namespace penstock::gpu
