// Decides which root of a store to believe.
#pragma once

#include "aio/store/store_parts.h"
#include "aio/store/store_repairs.h"

namespace penstock::aio {

// Takes the newest root that can be believed into `parts.root`, `parts.payload` and `parts.table`.
//
// Where a crash alone cannot explain what is found (a copy has rotted or differs, a drive lacks pages that were flushed
// before the root that names them was written), every block is verified before a root is believed, and the next older
// one is tried. A root is never believed for a run while a newer one may lie where a drive refuses to read: the drive
// may answer at the next try.
Status recover_root(IoEngine& engine, StoreParts& parts, const OpenOptions& options, Repairs& repairs);

}  // namespace penstock::aio
