#include "runtime/engine/ranks/shared_memory_carrier.h"

#include <algorithm>
#include <cstring>

#include "runtime/engine/ranks/rank_order_sum.h"
#include "tiering/check.h"

namespace penstock::engine {

// Each rank begins behind its own shard, so that all do not read from one at once.
Status SharedMemoryCarrier::gather(std::span<const Collective::Shard> shards) {
  const auto own = std::find_if(shards.begin(), shards.end(),
                                [this](const Collective::Shard& shard) { return shard.rank == rank_; });
  const size_t first = static_cast<size_t>(own - shards.begin());
  for (size_t i = 0; i < shards.size(); ++i) {
    const Collective::Shard& shard = shards[(first + i) % shards.size()];
    if (shard.rank == rank_ || shard.bytes == 0) continue;
    const std::span<const std::byte> other = memory_.area(shard.rank);
    CHECK(shard.offset_bytes + shard.bytes <= other.size(), "gather of ", shard.bytes, " B at ", shard.offset_bytes,
          ": the memory of rank ", shard.rank, " has ", other.size(), " B");
    std::memcpy(memory().data() + shard.offset_bytes, other.data() + shard.offset_bytes, shard.bytes);
  }
  return Status();
}

Status SharedMemoryCarrier::reduce(const Collective::Reduction& reduction) {
  const auto [begin, end] = reduction.parts[rank_];
  const uint64_t offset_bytes = reduction.offset_bytes + begin * bytes_of(reduction.dtype);
  add_up_in_rank_order(
      kernels_, memory_.ranks(), reduction.dtype, end - begin,
      [&](uint32_t other) { return memory_.area(other).data() + offset_bytes; }, reduction.target_dtype,
      reduction.target.data());
  return Status();
}

Status SharedMemoryCarrier::collect(const Collective::Collection& collection) {
  const auto [begin, end] = collection.parts[rank_];
  const uint64_t bytes = end - begin;
  for (uint32_t behind = 1; behind < memory_.ranks(); ++behind) {
    const uint32_t other = (rank_ + behind) % memory_.ranks();
    std::byte* const place = memory().data() + collection.target_offset_bytes + other * bytes;
    std::memcpy(place, memory_.area(other).data() + collection.offset_bytes + begin, bytes);
  }
  return Status();
}

}  // namespace penstock::engine
