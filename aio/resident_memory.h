// What this process has of the machine's memory.
#pragma once

#include <cstdint>

namespace penstock::aio {

uint64_t resident_bytes();
// The most since the process began, or since the last restart.
uint64_t resident_bytes_peak();
void restart_resident_peak();

}  // namespace penstock::aio
