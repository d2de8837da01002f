#include "runtime/engine/ranks/rank_agreement.h"

#include <algorithm>

namespace penstock::engine {

Status agree_on(Ranks& ranks, const Status& mine) {
  return wait_for_end([&](Collective::Then then) { ranks.passes().barrier(mine, std::move(then)); });
}

Status exchange_bytes(Ranks& ranks, std::span<const std::byte> mine, std::span<std::byte> all) {
  return wait_for_end([&](Collective::Then then) { ranks.passes().exchange(mine, all, std::move(then)); });
}

Status expect_same(Ranks& ranks, const std::string& what, std::span<const uint64_t> mine) {
  std::vector<uint64_t> all(mine.size() * ranks.ranks());
  PENSTOCK_TRY(exchange_bytes(ranks, std::as_bytes(mine), std::as_writable_bytes(std::span(all))));
  for (uint32_t rank = 1; rank < ranks.ranks(); ++rank) {
    if (std::equal(all.begin(), all.begin() + static_cast<ptrdiff_t>(mine.size()),
                   all.begin() + static_cast<ptrdiff_t>(rank * mine.size()))) {
      continue;
    }
    return Status(Code::kUsage, text(ranks.name_of(rank), ": ", what, " differs from that of ", ranks.name_of(0)),
                  "give all ranks the same configuration");
  }
  return Status();
}

Status expect_one_run(Ranks& ranks, const std::string& store_id) {
  std::string all(store_id.size() * ranks.ranks(), ' ');
  PENSTOCK_TRY(exchange_bytes(ranks, std::as_bytes(std::span(store_id)), std::as_writable_bytes(std::span(all))));
  for (uint32_t rank = 1; rank < ranks.ranks(); ++rank) {
    const std::string other = all.substr(rank * store_id.size(), store_id.size()),
                      first = all.substr(0, store_id.size());
    if (other == first) continue;
    return Status(Code::kUsage,
                  text(ranks.name_of(rank), ": its store belongs to run ", other, ", that of rank 0 to run ", first),
                  "give each rank the folders that it was created with");
  }
  return Status();
}

Result<std::vector<aio::StorePresence>> presence_by_rank(Ranks* ranks, const Result<aio::StorePresence>& mine) {
  const Status all_can_tell = ranks == nullptr ? mine.status() : agree_on(*ranks, mine.status());
  PENSTOCK_TRY(mine.status());  // which knows what to do about it
  PENSTOCK_TRY(all_can_tell);
  if (ranks == nullptr) return std::vector{*mine};
  std::vector<std::array<uint64_t, 3>> all(ranks->ranks());
  PENSTOCK_TRY(exchange_numbers(
      *ranks, std::array<uint64_t, 3>{static_cast<uint64_t>(mine->kind), mine->id[0], mine->id[1]}, all));
  std::vector<aio::StorePresence> found;
  for (const auto& [kind, first, second] : all) {
    found.push_back({.kind = static_cast<aio::StorePresence::Kind>(kind), .id = {first, second}});
  }
  return found;
}

Status all_of_all(Ranks& ranks, std::vector<bool>& each) {
  constexpr size_t kAtOnce = kExchangeBytesMax;
  for (size_t first = 0; first < each.size(); first += kAtOnce) {
    const size_t count = std::min(kAtOnce, each.size() - first);
    std::vector<std::byte> mine(count), all(count * ranks.ranks());
    for (size_t i = 0; i < count; ++i) mine[i] = each[first + i] ? std::byte{1} : std::byte{0};
    PENSTOCK_TRY(exchange_bytes(ranks, mine, all));
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] == std::byte{0}) each[first + i % count] = false;
    }
  }
  return Status();
}

}  // namespace penstock::engine
