// How long ago something was.
#pragma once

#include <chrono>

namespace penstock::engine {

inline double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace penstock::engine
