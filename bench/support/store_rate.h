// The drives' rate for the very bytes of an update, in place: states are read from their current slots and whole tiles
// written to free ones; nothing is computed or committed. A scratch file would be smaller and lie elsewhere, and so be
// faster wherever a cache lies between here and the flash.
#pragma once

#include <string>
#include <vector>

#include "tiering/status.h"

namespace penstock::bench {

struct StoreTraffic {
  double read_share = 10.0 / 22;  // of the bytes
  double seconds = 1;
  uint64_t first_tile = 0;  // where to begin; moves on, so that the next measurement is of other tiles
};

// GB/s, reads and writes together. REQUIRES: nobody has the store open, and it has free slots. Leaves its state as it
// is.
Result<double> measure_store_gbps(const std::vector<std::string>& folders, StoreTraffic& traffic);

}  // namespace penstock::bench
