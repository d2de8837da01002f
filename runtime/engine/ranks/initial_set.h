// A new run's stores of all ranks, made by one process of the model's values: what RankedEngine::create() makes of each
// rank's in that rank's process.
#pragma once

#include "runtime/engine/ranks/ranked_engine.h"
#include "runtime/engine/ranks/set_making.h"

namespace penstock::engine {

// `options`: as of RankedEngine::create(), of any rank; its drives are not looked at, and `wanted` has what the roots
// begin with. `initial` by the model's units; each rank's part is asked for once, in order.
Status create_set(IoEngine& io, const RankedOptions& options, const NewSet& wanted, const InitialValues& initial,
                  const aio::ScrubProgress& progress = {});

}  // namespace penstock::engine
