// What store_worker keeps in its store.
#pragma once

#include "tests/support/store_shapes.h"

namespace penstock::aio {

inline StoreShape worker_shape() { return small_shape(12, 20000, kBlockElements); }

}  // namespace penstock::aio
