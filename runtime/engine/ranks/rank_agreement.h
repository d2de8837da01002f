// What ranks ask one another in a few numbers: blocking, on the collective for passes.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "aio/store/store_presence.h"
#include "runtime/engine/ranks/ranks.h"

namespace penstock::engine {

// The refusal of the first rank that has one; what to do about it is known on that rank alone.
Status agree_on(Ranks& ranks, const Status& mine);
// Refused where a rank has other numbers than rank 0.
Status expect_same(Ranks& ranks, const std::string& what, std::span<const uint64_t> mine);
// Refused where the ranks' stores were not made together.
Status expect_one_run(Ranks& ranks, const std::string& store_id);
// By rank, what there is of the stores; refused where one rank could not tell. Null: there is only this one.
Result<std::vector<aio::StorePresence>> presence_by_rank(Ranks* ranks, const Result<aio::StorePresence>& mine);
// Keeps what all ranks say yes to.
Status all_of_all(Ranks& ranks, std::vector<bool>& each);

Status exchange_bytes(Ranks& ranks, std::span<const std::byte> mine, std::span<std::byte> all);

// By rank.
template <size_t count>
Status exchange_numbers(Ranks& ranks, const std::array<uint64_t, count>& mine,
                        std::vector<std::array<uint64_t, count>>& all) {
  return exchange_bytes(ranks, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
}

}  // namespace penstock::engine
