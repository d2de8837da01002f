// TcpMesh: connections between every two ranks of a run that is on several hosts, for each purpose one.
//
// They meet at rank 0, which listens where RankPlace says, on every address of its host; from it each learns where the
// others listen. Both ends of each connection prove that they know the environment variable PENSTOCK_SECRET, which all
// ranks have alike, or none. What follows is neither encrypted nor proven: a run belongs in a network of its own.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "runtime/engine/ranks/connection.h"
#include "runtime/engine/ranks/ranks.h"

namespace penstock::engine {

struct TcpMesh {
  // What ranks say in their first collective and besides, in their second, and the bytes that a carrier moves.
  enum Purpose : uint32_t { kPassesControl, kCommitsControl, kBytes };
  static constexpr size_t kPurposes = 3;

  std::vector<std::string> hosts;  // by rank: their names
  // By rank; none with itself.
  std::array<std::vector<Connection>, kPurposes> connections;
};

// All ranks together.
Result<TcpMesh> meet_over_tcp(const RanksOptions& options);

}  // namespace penstock::engine
