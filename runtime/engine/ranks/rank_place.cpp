#include "runtime/engine/ranks/rank_place.h"

#include <charconv>
#include <cstdlib>
#include <utility>

namespace penstock::engine {
namespace {

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  bool has(const char* name) const { return environment_(name).has_value(); }
  std::string word(const char* name) const { return environment_(name).value_or(""); }
  Result<uint32_t> number(const char* name) const {
    const std::optional<std::string> value = environment_(name);
    uint32_t number = 0;
    if (value) {
      const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
      if (error == std::errc() && end == value->data() + value->size()) return number;
    }
    return Status(Code::kUsage,
                  text("ranks: the environment variable ", name,
                       value ? text(" is '", *value, "', a whole number expected") : " is not set"),
                  "start all ranks with torchrun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  }

 private:
  const Environment& environment_;
};

Status check(const RankPlace& place) {
  if (place.ranks == 0 || place.ranks > kRanksMax) {
    return Status(Code::kUsage, text("ranks: ", place.ranks, " ranks, 1 to ", kRanksMax, " expected"));
  }
  if (place.rank < place.ranks) return Status();
  return Status(Code::kUsage,
                text("ranks: rank ", place.rank, " of ", place.ranks, ", less than ", place.ranks, " expected"));
}

// Where rank 0 of several hosts listens. torchrun keeps MASTER_PORT for itself.
Status find_meeting_place(const Variables& variables, RankPlace& place) {
  if (!variables.has("MASTER_ADDR")) {
    return Status(Code::kUsage, "ranks: several hosts, and the environment variable MASTER_ADDR is not set",
                  "give all ranks the address of rank 0's host in MASTER_ADDR, and a free port in MASTER_PORT");
  }
  PENSTOCK_TRY_ASSIGN(port, variables.number("MASTER_PORT"));
  place.address = variables.word("MASTER_ADDR");
  place.port = port + (variables.word("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0);
  if (place.port > 0 && place.port < 65536) return Status();
  return Status(Code::kUsage, text("ranks: MASTER_PORT ", port, ", 1 to 65534 expected"),
                "give all ranks the same free port of rank 0's host");
}

Status hosts_of(uint32_t here, RankPlace& place) {
  if (here > 0 && place.ranks % here == 0) {
    place.hosts = place.ranks / here;
    return Status();
  }
  return Status(Code::kUsage, text("ranks: ", here, " of ", place.ranks, " ranks are on this host"),
                "start as many ranks on every host");
}

// What shares a budget, or all of a model, is neighbours; the launcher may deal ranks out in another order.
Status expect_neighbours(const Variables& variables, const char* rank_name, const char* host_name,
                         const RankPlace& place) {
  const std::pair<const char*, uint32_t> expected[] = {{rank_name, place.rank_here()}, {host_name, place.host()}};
  for (const auto& [name, number] : expected) {
    if (!variables.has(name)) continue;
    PENSTOCK_TRY_ASSIGN(there, variables.number(name));
    if (there == number) continue;
    return Status(Code::kUsage,
                  text("ranks: rank ", place.rank, " of ", place.ranks, " on ", place.hosts, " hosts has ", name, " ",
                       there, ", ", number, " expected"),
                  "number the ranks host by host: torchrun does, and `srun --distribution=block`");
  }
  return Status();
}

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Result<RankPlace> find_rank_place(const Environment& environment) {
  const Variables variables(environment);
  RankPlace place;
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) {
    PENSTOCK_TRY_ASSIGN(rank, variables.number("RANK"));
    PENSTOCK_TRY_ASSIGN(ranks, variables.number("WORLD_SIZE"));
    place = {rank, ranks, {}};
    PENSTOCK_TRY(check(place));
    if (variables.has("LOCAL_WORLD_SIZE")) {
      PENSTOCK_TRY_ASSIGN(here, variables.number("LOCAL_WORLD_SIZE"));
      PENSTOCK_TRY(hosts_of(here, place));
    }
    if (ranks == 1) return place;
    if (place.hosts > 1) {
      PENSTOCK_TRY(find_meeting_place(variables, place));
      PENSTOCK_TRY(expect_neighbours(variables, "LOCAL_RANK", "GROUP_RANK", place));
    }
    PENSTOCK_TRY(variables.number("MASTER_PORT").status());
    // A launcher that starts the ranks again after a failure must not have the new ones meet the old.
    place.meeting = text(variables.word("MASTER_ADDR"), ":", variables.word("MASTER_PORT"));
    for (const char* of_launcher : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
      if (variables.has(of_launcher)) place.meeting += ":" + variables.word(of_launcher);
    }
    return place;
  }
  if (variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_ID")) {
    PENSTOCK_TRY_ASSIGN(rank, variables.number("SLURM_PROCID"));
    PENSTOCK_TRY_ASSIGN(ranks, variables.number("SLURM_NTASKS"));
    place = {rank, ranks, {}};
    PENSTOCK_TRY(check(place));
    if (variables.has("SLURM_NNODES")) {
      PENSTOCK_TRY_ASSIGN(hosts, variables.number("SLURM_NNODES"));
      if (hosts == 0 || ranks % hosts != 0) {
        return Status(Code::kUsage, text("ranks: ", ranks, " tasks on ", hosts, " nodes, as many on each expected"),
                      "srun --ntasks-per-node");
      }
      place.hosts = hosts;
      if (hosts > 1) {
        PENSTOCK_TRY(find_meeting_place(variables, place));
        PENSTOCK_TRY(expect_neighbours(variables, "SLURM_LOCALID", "SLURM_NODEID", place));
      }
    }
    if (ranks > 1) place.meeting = text("slurm:", variables.word("SLURM_JOB_ID"), ":", variables.word("SLURM_STEP_ID"));
    return place;
  }
  return place;
}

}  // namespace penstock::engine
