// A case's peak of memory is its own only in a process of its own.
#pragma once

#include <functional>
#include <string>

#include "tiering/status.h"

namespace penstock::bench {

// Runs `body` in a forked process and returns its exit code; says a failure of `bench` on stderr.
int in_own_process(const std::string& bench, const std::function<Status()>& body);

// What was measured and created before the run does not count as its memory.
void forget_resident_peak();

}  // namespace penstock::bench
