// The checksum of tiering/arithmetic/checksum.h at SIMD speed, for code that checks bytes outside of an update.
#pragma once

#include "cpu_optim/isa.h"
#include "tiering/arithmetic/checksum.h"

namespace penstock::cpu_optim {

// REQUIRES: `isa` is among available_isas().
ChecksumFunction checksum_function(Isa isa = best_isa());

}  // namespace penstock::cpu_optim
