// Collective moves bytes among the ranks of a run. All ranks begin the same operations in the same order.
//
// Each rank has memory that the others may read, taken once, when the ranks meet; operations move nothing else and take
// no further memory. An operation is put in a queue and carried out by a thread of the collective's own, one after
// another. It ends on a rank only when every rank has done its part, so that from then on the rank may overwrite what
// the others have read.
//
// A rank that dies, hangs, fails or leaves ends this operation and all later ones on every other rank, with a refusal
// that names it and the step that it was in. Ranks that begin different operations are refused likewise.
//
// Operations are begun by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tiering/state_layout.h"
#include "tiering/status.h"
#include "tiering/tier.h"

namespace penstock {

// Of one rank in one exchange.
constexpr uint64_t kExchangeBytesMax = 1024;

class Collective {
 public:
  // Called once when the operation has ended, on the collective's thread, or inside the call where there is nobody to
  // wait for. Returns quickly.
  using Then = std::function<void(const Status&)>;

  // Waits for the operations under way.
  virtual ~Collective() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t ranks() const = 0;
  // This rank's. Begins at a multiple of 4096 B. Where it is a device's, only what runs on that device may follow its
  // addresses: and what writes to it for an operation, or reads from it, has ended when the operation begins.
  virtual std::span<std::byte> memory() const = 0;
  // Host, or device.
  virtual Tier tier() const = 0;

  // A run of one rank's memory(), which others take to the same offset of theirs.
  struct Shard {
    uint32_t rank = 0;
    uint64_t offset_bytes = 0;
    uint64_t bytes = 0;
  };
  // Afterwards every rank that is named has all of the shards. Nobody writes to their bytes meanwhile.
  // REQUIRES: ranks that are named together give the same shards in the same order, and each names itself, with 0 B
  // where it has nothing to give; a rank that no other one names gives none, or its own. Shards share no byte and lie
  // in memory().
  virtual void gather(std::span<const Shard> shards, Then then) = 0;

  // The values of all ranks, added up.
  struct Reduction {
    Dtype dtype = Dtype::fp32;  // of the values: fp32, bf16 or fp16
    uint64_t offset_bytes = 0;  // of the first of them, in every rank's memory()
    struct Part {
      uint64_t begin = 0, end = 0;  // in elements
    };
    std::vector<Part> parts;  // by rank: what it adds up, maybe nothing; no two share an element
    Dtype target_dtype = Dtype::fp32;
    // For the sums of this rank's part; shares no byte with the values. A device's lies in memory().
    std::span<std::byte> target;
  };
  // The sum of each element is made in fp32, in the order of ranks, and rounded once: always the same bits.
  // REQUIRES: all ranks give the same but for the target, which has room for the rank's part; offsets are multiples of
  // 4 B.
  virtual void reduce(const Reduction& reduction, Then then) = 0;

  // What every rank has for each of the others.
  struct Collection {
    uint64_t offset_bytes = 0;  // of the first part, in every rank's memory()
    struct Part {
      uint64_t begin = 0, end = 0;  // in bytes
    };
    std::vector<Part> parts;  // by rank: what it takes from every other one, maybe nothing; no two share a byte
    // Where this rank's part of each rank comes to in its memory(), one after another in the order of ranks: its own
    // has a place, to which nothing comes. Shares no byte with the parts.
    uint64_t target_offset_bytes = 0;
  };
  // Nobody writes to the parts meanwhile. REQUIRES: all ranks give the same but for the target.
  virtual void collect(const Collection& collection, Then then) = 0;

  // `all` gets what every rank gives, in the order of ranks. `mine` is read at once.
  // REQUIRES: all ranks give the same number of bytes, at most kExchangeBytesMax; `all` has room for ranks() times it.
  virtual void exchange(std::span<const std::byte> mine, std::span<std::byte> all, Then then) = 0;

  // Ends when every rank has come, with the verdict of all: the refusal of the first rank that has one, named. A
  // refusal does not end later operations.
  virtual void barrier(const Status& mine, Then then) = 0;
};

}  // namespace penstock
