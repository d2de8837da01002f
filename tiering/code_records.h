// Values on their way between ranks, in codes: a record for each block of kCodeBlockElements, with its scale in fp32
// and behind that as many codes as a whole block has. In int8 or int4, by tiering/arithmetic/block_codes.h.
#pragma once

#include "tiering/state_layout.h"

namespace penstock {

constexpr uint64_t record_bytes(BlockCode code) {
  return sizeof(float) + (code == BlockCode::int8 ? kCodeBlockElements : kCodeBlockElements / 2);
}

constexpr uint64_t records_bytes(BlockCode code, uint64_t elements) {
  return ceil_div(elements, kCodeBlockElements) * record_bytes(code);
}

}  // namespace penstock
