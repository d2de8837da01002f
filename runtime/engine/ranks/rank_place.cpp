#include "runtime/engine/ranks/rank_place.h"

#include <charconv>
#include <cstdlib>

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

Status several_hosts(uint32_t here, uint32_t all) {
  return Status(Code::kUsage, text("ranks: ", here, " of ", all, " ranks are on this host; all are expected"),
                "start all ranks on one host: they share its memory");
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
      if (here != ranks) return several_hosts(here, ranks);
    }
    if (ranks == 1) return place;
    PENSTOCK_TRY(variables.number("MASTER_PORT").status());
    // A launcher that starts the ranks again after a failure must not have the new ones meet the old.
    place.meeting = text(variables.word("MASTER_ADDR"), ":", variables.word("MASTER_PORT"), ":",
                         variables.word("TORCHELASTIC_RUN_ID"), ":", variables.word("TORCHELASTIC_RESTART_COUNT"));
    return place;
  }
  if (variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_ID")) {
    PENSTOCK_TRY_ASSIGN(rank, variables.number("SLURM_PROCID"));
    PENSTOCK_TRY_ASSIGN(ranks, variables.number("SLURM_NTASKS"));
    place = {rank, ranks, {}};
    PENSTOCK_TRY(check(place));
    if (variables.has("SLURM_NNODES")) {
      PENSTOCK_TRY_ASSIGN(hosts, variables.number("SLURM_NNODES"));
      if (hosts > 1) return several_hosts(ranks / hosts, ranks);
    }
    if (ranks > 1) place.meeting = text("slurm:", variables.word("SLURM_JOB_ID"), ":", variables.word("SLURM_STEP_ID"));
    return place;
  }
  return place;
}

}  // namespace penstock::engine
