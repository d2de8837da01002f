// collective_worker CHECK SEED [device]: one rank of a run that tries its collectives, in shared memory or by NCCL on
// devices. Says what is wrong and ends with 1; or, of checks in which something ends the ranks, says why they ended.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "runtime/engine/ranks/connection.h"
#include "tests/contracts/collective_contract.h"
#include "tests/support/passing_ranks.h"

namespace penstock::engine {
namespace {

constexpr uint32_t kUnlucky = 1;  // what happens to a rank happens to it

// Whose passes are those among devices.
class RanksOnDevices final : public test::PassingRanks {
 public:
  explicit RanksOnDevices(Ranks& inner) : PassingRanks(inner), devices_(*inner.among_devices()) {}
  Collective& passes() override { return devices_; }

 private:
  Collective& devices_;
};

Status barrier(Ranks& ranks) {
  return wait_for_end([&](Collective::Then then) { ranks.passes().barrier(Status(), std::move(then)); });
}

// Rounds of work, of which the unlucky rank does not see the end of the fifth.
Status end_ranks(Ranks& ranks, const std::string& how) {
  for (uint64_t step = 1;; ++step) {
    ranks.at_step(step);
    if (step == 5 && ranks.rank() == kUnlucky) {
      if (how == "die") ::raise(SIGKILL);
      if (how == "stop") ::raise(SIGSTOP);
      if (how == "leave") return Status();
      if (how == "fail") ranks.fail(Status(Code::kEnvironment, "read 4096 B at 0 of rank1.tiles: EIO"));
      if (how == "away") ranks.went();
      if (how == "still") ranks.step_began();
      if (how == "late" || how == "away" || how == "still") {
        while (ranks.status().ok()) ::usleep(1000);
      }
      if (how == "slow") {
        ranks.step_began();
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        while (ranks.status().ok() && std::chrono::steady_clock::now() < until) {
          ranks.progressed();
          ::usleep(1000);
        }
        ranks.fail(Status(Code::kInterrupted, "done"));
      }
      if (how == "differ") PENSTOCK_TRY(barrier(ranks));
    }
    if (step == 5 && how == "one_by_one") {
      PENSTOCK_TRY(barrier(ranks));  // behind it nobody needs another any more
      ::usleep(ranks.rank() == kUnlucky ? 0 : 1'500'000);
      return ranks.status();
    }
    const bool is_unlike = how == "unlike" && step == 5 && ranks.rank() == kUnlucky;
    std::vector<Collective::Shard> shards;
    for (uint32_t rank = 0; rank < ranks.ranks(); ++rank)
      shards.push_back({rank, rank * 1000, is_unlike ? 999u : 1000});
    if (step == 5 && ranks.rank() == kUnlucky && how.starts_with("within_")) {
      std::thread([how] {
        ::usleep(200'000);
        ::raise(how == "within_die" ? SIGKILL : SIGSTOP);
      }).detach();
    }
    PENSTOCK_TRY(wait_for_end([&](Collective::Then then) { ranks.passes().gather(shards, std::move(then)); }));
  }
}

// Strangers that connect with rank 0 and say nothing, such as who looks which ports are open. REQUIRES: it is on this
// host.
std::vector<Connection> connect_silently(uint32_t port, size_t count) {
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  there.sin_port = htons(static_cast<uint16_t>(port));
  std::vector<Connection> all;
  while (all.size() < count) {
    Connection one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(one.descriptor(), reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0) {
      all.push_back(std::move(one));
    } else {
      ::usleep(10'000);  // it does not listen yet
    }
  }
  return all;
}

Status run(const std::string& check, uint64_t seed, bool on_device) {
  PENSTOCK_TRY_ASSIGN(place, find_rank_place());
  RanksOptions options{.place = place, .memory_bytes = CollectiveContract::kMemoryBytes};
  options.staging_bytes = 128 << 10;  // so that sums are made in rounds
  if (on_device) std::swap(options.memory_bytes, options.device_memory_bytes);
  if (on_device) options.device = static_cast<int>(place.rank) % std::max(1, gpu::find_cuda().devices);
  if (check == "unequal" && place.rank == kUnlucky) options.device.reset();
  if (check == "stuck") options.hangs_after = std::chrono::seconds(5);
  if (check == "stop" || check == "within_stop") options.silent_at_most = std::chrono::seconds(3);
  if (check == "late") options.late_at_most = std::chrono::seconds(5);
  if (check == "away" || check == "still" || check == "slow") options.hangs_after = std::chrono::seconds(3);
  if (check == "lonely") options.meets_within = std::chrono::seconds(place.rank == 0 ? 5 : 30);
  if (check == "stranger") options.meets_within = std::chrono::seconds(place.rank == kUnlucky ? 30 : 8);
  if (check == "stranger" && place.rank == kUnlucky) ::setenv("PENSTOCK_SECRET", "a guess", 1);
  if (check == "lonely" && place.rank == kUnlucky) return Status();
  std::vector<Connection> strangers;
  if (check == "crowd") options.meets_within = std::chrono::seconds(15);
  if (check == "crowd" && place.rank == kUnlucky) strangers = connect_silently(place.port, 10);
  if (check == "same" && place.rank > 0) options.place.rank = kUnlucky;
  PENSTOCK_TRY_ASSIGN(met, meet(options));
  std::optional<RanksOnDevices> on_devices;
  if (options.device) on_devices.emplace(*met);
  Ranks* const ranks = on_devices ? &*on_devices : met.get();
  if (check == "crowd") return barrier(*ranks);
  const auto& checks = CollectiveContract::checks();
  if (checks.contains(check)) {
    PENSTOCK_TRY_ASSIGN(memory, test::CollectiveMemory::open(ranks->passes(), options.device));
    CollectiveContract contract(*ranks, *memory, seed);
    PENSTOCK_TRY((contract.*checks.at(check))());
    return barrier(*ranks);  // an early end must not look like a failure
  }
  return end_ranks(*ranks, check);
}

}  // namespace
}  // namespace penstock::engine

int main(int count, char** arguments) {
  if (count < 3 || count > 4) return 2;
  const penstock::Status status =
      penstock::engine::run(arguments[1], std::strtoull(arguments[2], nullptr, 10), count == 4);
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
