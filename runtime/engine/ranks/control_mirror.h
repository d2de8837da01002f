// ControlMirror keeps what ranks of several hosts say of themselves alike: each has a control of its own, in which it
// writes its own page, and the mirror brings it the pages of the others, and the first failure that any of them hears
// of. What ranks wait for comes at once; signs of life, some 20 times a second.
//
// A connection that ends without a word before is a process that has died.
#pragma once

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "runtime/engine/ranks/connection.h"
#include "runtime/engine/ranks/shared_memory.h"

namespace penstock::engine {

class ControlMirror {
 public:
  // Of those for passes and commits: ranks of several hosts have no others.
  static constexpr uint32_t kMirroredChannels = 2;
  using Connections = std::array<std::vector<Connection>, kMirroredChannels>;  // by channel and rank

  // `memory` outlives it.
  static Result<std::unique_ptr<ControlMirror>> make(const SharedMemory& memory, uint32_t rank,
                                                     Connections connections);
  // The others learn what this rank's page has last, that it has left for instance.
  ~ControlMirror();

  // Returns when the step in this rank's page is on its way to the others: they name it, whenever this rank dies.
  void tell_step();

 private:
  ControlMirror(const SharedMemory& memory, uint32_t rank, Connections connections);

  // What one connection has brought so far, and not yet a whole message.
  struct Hearing {
    uint32_t channel = 0, rank = 0;
    std::vector<char> bytes = {};
    bool has_ended = false;
  };
  void tell(uint32_t channel);
  void send_to_all(uint32_t channel, const std::vector<char>& messages);
  void hear();
  void hear_from(Hearing& from);
  void take_messages(Hearing& from);
  void take(const Hearing& from, uint32_t kind, const char* payload, size_t bytes);
  int descriptor(uint32_t channel, uint32_t rank) const { return connections_[channel][rank].descriptor(); }

  const SharedMemory& memory_;
  const uint32_t rank_;
  const Connections connections_;
  std::array<std::vector<std::atomic<bool>>, kMirroredChannels>
      has_gone_;  // by rank: nobody hears this channel any more
  // The hearing thread's alone, by rank.
  std::vector<bool> says_it_has_left_;
  std::vector<uint32_t> channels_ended_;
  std::atomic<uint64_t> told_step_ = 0;
  std::atomic<bool> stopping_ = false;
  std::array<std::thread, kMirroredChannels> telling_;
  std::thread hearing_;
};

}  // namespace penstock::engine
