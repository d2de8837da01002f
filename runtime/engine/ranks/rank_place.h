// RankPlace says which of a run's ranks this process is, as what has started it tells by environment variables.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tiering/status.h"

namespace penstock::engine {

// More than one host has.
constexpr uint32_t kRanksMax = 64;

struct RankPlace {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  std::string meeting = {};  // a name that only the ranks of this run have; empty: there is but one
  // As many ranks on each, neighbours. With several, where rank 0 listens for the others.
  uint32_t hosts = 1;
  std::string address = {};
  uint32_t port = 0;

  uint32_t ranks_here() const { return ranks / hosts; }
  uint32_t host() const { return rank / ranks_here(); }
  // Among the ranks of its host.
  uint32_t rank_here() const { return rank % ranks_here(); }
};

// The value of an environment variable, if it is set.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> environment_variable(const char* name);

// From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them, or from Slurm's variables; one rank where
// there are neither. Refuses numbers that are none.
Result<RankPlace> find_rank_place(const Environment& environment = environment_variable);

}  // namespace penstock::engine
