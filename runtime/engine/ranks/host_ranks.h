// HostRanks are the processes of one host, which share memory, and where they have devices, agree by it on what NCCL
// moves among those. On several hosts each has such memory of its own, whose control a ControlMirror keeps alike, and
// TCP moves the bytes, among those of one host too.
//
// They meet at a socket without a name in any file system: rank 0 listens, hands each of the others the shared memory,
// and keeps the connection, whose end tells that a process has died. A thread of each rank gives signs of life and
// looks for those of the others, so that one that was stopped is noticed as well.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "runtime/engine/ranks/connection.h"
#include "runtime/engine/ranks/control_mirror.h"
#include "runtime/engine/ranks/host_collective.h"
#include "runtime/engine/ranks/ranks.h"
#include "runtime/engine/ranks/shared_memory.h"
#include "runtime/engine/ranks/tcp_mesh.h"

namespace penstock::engine {

// What the ranks have once they have met. On one host rank 0 is connected with all others, each of them with rank 0.
struct Meeting {
  std::unique_ptr<SharedMemory> memory;
  std::vector<Connection> connections;  // by rank
  std::optional<TcpMesh> mesh = {};     // on several hosts
};
Result<Meeting> meet_on_host(const RanksOptions& options);

class HostRanks final : public Ranks {
 public:
  static Result<std::unique_ptr<Ranks>> make(const RanksOptions& options);
  ~HostRanks() override;

  uint32_t rank() const override { return options_.place.rank; }
  uint32_t ranks() const override { return options_.place.ranks; }
  std::string name_of(uint32_t rank) const override { return memory_->name_of(rank); }
  Collective& passes() override { return *collectives_[0]; }
  Collective& commits() override { return *collectives_[1]; }
  Collective* among_devices() override { return collectives_[2].get(); }
  void at_step(uint64_t step) override;
  void came() override;
  void went() override;
  void step_began() override;
  void step_ended() override;
  void progressed() override;
  void expect_pass(double seconds) override;
  void fail(const Status& why) override;
  Status status() const override { return memory_->failure(); }

 private:
  HostRanks(const RanksOptions& options, Meeting meeting);
  Status start(uint32_t channel, std::unique_ptr<Carrier> carrier);
  void watch();
  void look_at_connections();
  void look_for_signs_of_life();

  const RanksOptions options_;
  std::unique_ptr<SharedMemory> memory_;
  std::vector<Connection> connections_;
  std::unique_ptr<ControlMirror> mirror_;  // on several hosts
  std::array<std::unique_ptr<HostCollective>, kChannels> collectives_;
  // The trainer's thread's alone.
  uint64_t absences_ = 0;
  std::chrono::steady_clock::time_point went_;
  // The watching thread's alone.
  struct LastSign {
    uint64_t number = 0;
    std::chrono::steady_clock::time_point seen;
  };
  std::vector<LastSign> signs_;
  std::chrono::steady_clock::time_point looked_;
  std::atomic<bool> stopping_ = false;
  std::thread watcher_;
};

}  // namespace penstock::engine
