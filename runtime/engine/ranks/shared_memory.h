// SharedMemory is what the ranks of one host map together: a page of control for each of them, and the memory of their
// collectives. It has no name in any file system, so that none is left behind however the ranks end.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/ranks/rank_place.h"
#include "tiering/collective.h"
#include "tiering/status.h"

namespace penstock::engine {

constexpr uint32_t kChannels = 3;  // one for each collective

// What a rank gives to one small operation, and what it says of any: all must say the same.
struct Word {
  uint64_t digest = 0;  // of the operation
  uint32_t code = 0;    // of a verdict
  uint32_t bytes = 0;
  std::array<std::byte, kExchangeBytesMax> given{};
};

// One rank's part in one collective. Operations count from 1.
struct alignas(64) ChannelOfRank {
  std::atomic<uint64_t> begun = 0;  // the operation that it has come to
  std::atomic<uint64_t> done = 0;   // the last that it has done its part of
  std::atomic<uint32_t> waits = 0;  // for other ranks, or copies from them
  // By the operation's number modulo 2. A rank writes its word of operation n when it has ended n - 1, to which all
  // have come, and so have read the words of n - 2.
  std::array<Word, 2> words;
};

struct alignas(64) ControlOfRank {
  std::atomic<uint64_t> sign_of_life = 0;
  std::atomic<uint64_t> step = 0;
  std::atomic<uint32_t> has_left = 0;
  // Of its trainer: the number of the absence in which it computes, counted from 1; 0: it is within a verb.
  std::atomic<uint64_t> absence = 0;
  std::atomic<uint32_t> in_step = 0;
  std::atomic<uint64_t> progress = 0;  // what has ended within steps
  std::atomic<uint64_t> longest_absence_ms = 0;
  std::atomic<uint64_t> expected_pass_ms = 0;
  std::array<ChannelOfRank, kChannels> channels;
};

// The first failure, which all ranks end with.
struct alignas(64) SharedFailure {
  enum State : uint32_t { none, writing, written };
  std::atomic<uint32_t> state = none;
  uint32_t code = 0;
  uint32_t bytes = 0;
  std::array<char, 2048> message{};
};

struct alignas(64) SharedControl {
  SharedFailure failure;
  std::array<std::atomic<uint32_t>, kChannels> bells{};  // rung when something has changed
  std::array<ControlOfRank, kRanksMax> ranks;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "processes share them");

class SharedMemory {
 public:
  // Makes it, for ranks with so many bytes each.
  static Result<std::unique_ptr<SharedMemory>> make(const std::vector<uint64_t>& bytes_of_ranks);
  // Maps what another process has made; takes the descriptor.
  static Result<std::unique_ptr<SharedMemory>> attach(int descriptor, const std::vector<uint64_t>& bytes_of_ranks);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int descriptor() const { return descriptor_; }
  SharedControl& control() const { return *control_; }
  uint32_t ranks() const { return static_cast<uint32_t>(areas_.size()); }
  std::span<std::byte> area(uint32_t rank) const { return areas_[rank]; }
  // Takes the pages of this rank's area, so that a refusal comes now.
  Status populate(uint32_t rank) const;

  void ring(uint32_t channel) const;
  void ring_all() const;
  // Until the bell is rung after it read `heard`, or some milliseconds have passed.
  void listen(uint32_t channel, uint32_t heard) const;

  // Where each rank is, before anybody asks; on one host nobody needs to know.
  void name_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }
  // "rank 3", or among several hosts "rank 3 on node1".
  std::string name_of(uint32_t rank) const;
  // That it did, and in which step.
  Status died(uint32_t rank) const;

  // Keeps the first.
  void fail(const Status& why) const;
  Status failure() const;

 private:
  SharedMemory() = default;
  Status map(const std::vector<uint64_t>& bytes_of_ranks);

  int descriptor_ = -1;
  std::byte* mapped_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  SharedControl* control_ = nullptr;
  std::vector<std::span<std::byte>> areas_;
  std::vector<std::string> hosts_;  // by rank
};

}  // namespace penstock::engine
