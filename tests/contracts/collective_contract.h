// What every Collective must do, as seen by one of its ranks: each runs the same check, with the same seed, in a
// process of its own. An implementation's tests run them over 1, 2, 3, 4 and 8 ranks.
#pragma once

#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/ranks/rank_agreement.h"
#include "runtime/engine/ranks/ranks.h"
#include "tests/support/collective_memory.h"
#include "tests/support/instrumented.h"
#include "tiering/arithmetic/convert.h"

namespace penstock::engine {

class CollectiveContract {
 public:
  static constexpr uint64_t kMemoryBytes = 5 << 18;
  static constexpr int kRounds = test::kStride == 1 ? 20 : 4;  // of those that look at all of the memory
  static constexpr int kRoundsOfCopies = 8;                    // at most, where all of it is copied before and after

  // `memory`: of the ranks' collective for passes.
  CollectiveContract(Ranks& ranks, const test::CollectiveMemory& memory, uint64_t seed)
      : ranks_(ranks), passes_(ranks.passes()), memory_(memory), common_(seed), own_(seed * 1009 + ranks.rank()) {}

  using Check = Status (CollectiveContract::*)();
  static std::vector<std::string> names_of_checks() {
    std::vector<std::string> names;
    for (const auto& [name, check] : checks()) names.push_back(name);
    return names;
  }
  static const std::map<std::string, Check>& checks() {
    static const std::map<std::string, Check> all = {
        {"gather", &CollectiveContract::gathers},
        {"gather_in_groups", &CollectiveContract::gathers_in_groups},
        {"reduce", &CollectiveContract::reduces},
        {"reduce_in_rank_order", &CollectiveContract::reduces_in_rank_order},
        {"collect", &CollectiveContract::collects},
        {"exchange", &CollectiveContract::exchanges},
        {"barrier", &CollectiveContract::carries_verdicts},
        {"several", &CollectiveContract::keeps_the_order_of_many},
        {"two_collectives", &CollectiveContract::keeps_collectives_apart},
        {"agreement_on_many", &CollectiveContract::agrees_on_many},
    };
    return all;
  }

  // Shards of any lengths, none among them, come to the same place; nothing else is touched.
  Status gathers() {
    for (int round = 0; round < rounds(kRounds); ++round) {
      const uint64_t offset = common_() % 5000;
      const std::vector<uint64_t> ends = uneven(common_() % 200'000);
      fill(round);
      std::vector<Collective::Shard> shards = shards_of(ends, offset);
      delay();
      PENSTOCK_TRY(carry([&](Collective::Then then) { passes_.gather(shards, std::move(then)); }));
      PENSTOCK_TRY(expect_gathered(round, shards));
      // What the others have read may be overwritten now.
      std::memset(memory_.bytes().data(), 0xee, kMemoryBytes);
    }
    return Status();
  }

  // Neighbours in pairs, each of which gathers something else.
  Status gathers_in_groups() {
    for (int round = 0; round < rounds(kRounds); ++round) {
      fill(round);
      const uint32_t first = ranks_.rank() / 2 * 2;
      std::vector<Collective::Shard> shards;
      for (uint32_t rank = first; rank < std::min(first + 2, ranks_.ranks()); ++rank) {
        shards.push_back({rank, 40'000ull * first + (rank - first) * 30'001ull, 30'001});
      }
      delay();
      PENSTOCK_TRY(carry([&](Collective::Then then) { passes_.gather(shards, std::move(then)); }));
      PENSTOCK_TRY(expect_gathered(round, shards));
      std::memset(memory_.bytes().data(), 0xee, kMemoryBytes);
    }
    return Status();
  }

  Status reduces() {
    const Dtype dtypes[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16};
    for (int round = 0; round < rounds(30); ++round) {
      const Dtype dtype = dtypes[common_() % 3], target_dtype = common_() % 2 ? dtype : dtypes[common_() % 3];
      const uint64_t offset = common_() % 1000 * 4;
      const std::vector<uint64_t> ends = uneven(common_() % 60'000);
      for (uint64_t i = 0; i < ends.back(); ++i) store(dtype, offset, i, value(round, ranks_.rank(), i));
      const Target sums = target(length_of(ends, ranks_.rank()) * bytes_of(target_dtype));
      delay();
      PENSTOCK_TRY(carry([&](Collective::Then then) {
        passes_.reduce({dtype, offset, parts_of(ends), target_dtype, sums.given}, std::move(then));
      }));
      const uint64_t begin = ends[ranks_.rank()] - length_of(ends, ranks_.rank());
      for (uint64_t i = begin; i < ends[ranks_.rank()]; ++i) {
        float sum = rounded(dtype, value(round, 0, i));
        for (uint32_t rank = 1; rank < ranks_.ranks(); ++rank) sum += rounded(dtype, value(round, rank, i));
        const float got = load(target_dtype, sums.seen.data(), i - begin);
        if (bits(got) != bits(rounded(target_dtype, sum))) {
          return different(round, text("the sum of element ", i, " is ", got, ", ", sum, " expected"));
        }
      }
      std::memset(memory_.bytes().data(), 0xee, kMemoryBytes);
    }
    return Status();
  }

  // 1e8 + 1 is 1e8 in fp32, so that any other order gives 1, or 0 - 1e8 and more.
  Status reduces_in_rank_order() {
    const float given[] = {1e8f, 1, -1e8f};
    constexpr uint64_t kElements = 20'000;
    for (int round = 0; round < rounds(40); ++round) {
      for (uint64_t i = 0; i < kElements; ++i) {
        store(Dtype::fp32, 0, i, ranks_.rank() < 3 ? given[ranks_.rank()] : 0);
      }
      const std::vector<uint64_t> ends = uneven(kElements);
      const uint64_t count = length_of(ends, ranks_.rank());
      const Target sums = target(count * sizeof(float));
      delay();
      PENSTOCK_TRY(carry([&](Collective::Then then) {
        passes_.reduce({Dtype::fp32, 0, parts_of(ends), Dtype::fp32, sums.given}, std::move(then));
      }));
      const float expected = ranks_.ranks() < 3 ? 1e8f : 0;
      for (uint64_t i = 0; i < count; ++i) {
        const float sum = load(Dtype::fp32, sums.seen.data(), i);
        if (bits(sum) != bits(expected)) return different(round, text("a sum is ", sum, ", ", expected, " expected"));
      }
    }
    return Status();
  }

  // Each rank has its part of every other rank's bytes, in the order of ranks; nothing else is touched.
  Status collects() {
    constexpr uint64_t kTarget = 3 << 18;
    for (int round = 0; round < rounds(kRounds); ++round) {
      const uint64_t offset = common_() % 5000, bytes_most = (kMemoryBytes - kTarget) / ranks_.ranks();
      const std::vector<uint64_t> ends = uneven(common_() % std::min<uint64_t>(200'000, bytes_most));
      fill(round);
      Collective::Collection collection{.offset_bytes = offset, .parts = {}, .target_offset_bytes = kTarget};
      for (uint64_t end : ends) {
        collection.parts.push_back({collection.parts.empty() ? 0 : collection.parts.back().end, end});
      }
      delay();
      PENSTOCK_TRY(carry([&](Collective::Then then) { passes_.collect(collection, std::move(then)); }));
      const auto [begin, end] = collection.parts[ranks_.rank()];
      const uint64_t taken = end - begin;
      PENSTOCK_TRY(expect_shard(round, {ranks_.rank(), 0, kTarget}));
      for (uint32_t rank = 0; rank < ranks_.ranks(); ++rank) {
        for (uint64_t i = 0; i < taken; ++i) {
          const uint64_t at = kTarget + rank * taken + i;
          const bool is_own = rank == ranks_.rank();
          if (memory_.bytes()[at] != pattern(round, rank, is_own ? at : offset + begin + i)) {
            return different(round, text("byte ", i, " of the part of rank ", rank));
          }
        }
      }
      const uint64_t behind = kTarget + taken * ranks_.ranks();
      PENSTOCK_TRY(expect_shard(round, {ranks_.rank(), behind, kMemoryBytes - behind}));
      std::memset(memory_.bytes().data(), 0xee, kMemoryBytes);
    }
    return Status();
  }

  Status exchanges() {
    for (int round = 0; round < 50; ++round) {
      const uint64_t bytes = round == 0 ? kExchangeBytesMax : common_() % kExchangeBytesMax;
      std::vector<std::byte> mine(bytes), all(bytes * ranks_.ranks());
      for (uint64_t i = 0; i < bytes; ++i) mine[i] = pattern(round, ranks_.rank(), i);
      delay();
      PENSTOCK_TRY(wait_for_end([&](Collective::Then then) { passes_.exchange(mine, all, std::move(then)); }));
      for (uint64_t i = 0; i < all.size(); ++i) {
        if (all[i] != pattern(round, static_cast<uint32_t>(i / bytes), i % bytes)) {
          return different(round, text("byte ", i, " of an exchange"));
        }
      }
    }
    return Status();
  }

  // All hear of the first rank that refuses, and go on.
  Status carries_verdicts() {
    for (int round = 0; round < 50; ++round) {
      const uint64_t refusing = common_() % 4 == 0 ? 0 : common_();  // by bit
      auto refuses = [&](uint32_t rank) { return (refusing >> rank) & 1; };
      std::string expected;
      for (uint32_t rank = ranks_.ranks(); rank-- > 0;) {
        if (refuses(rank)) expected = text("drive ", rank, " is full");
      }
      ranks_.at_step(static_cast<uint64_t>(round));
      delay();
      const Status mine =
          refuses(ranks_.rank()) ? Status(Code::kDoesNotFit, text("drive ", ranks_.rank(), " is full")) : Status();
      const Status verdict = wait_for_end([&](Collective::Then then) { passes_.barrier(mine, std::move(then)); });
      if (verdict.ok() != expected.empty() || verdict.message().find(expected) == std::string::npos) {
        return different(round, text("the verdict is '", verdict.message(), "', '", expected, "' expected"));
      }
      if (!verdict.ok() && verdict.code() != Code::kDoesNotFit) return different(round, "the verdict's code");
    }
    return Status();
  }

  // Operations wait behind one another, without anybody waiting for them.
  Status keeps_the_order_of_many() {
    constexpr int kMany = 30;
    std::vector<int> ended;  // by the collective's thread
    fill(0);
    PENSTOCK_TRY(memory_.give());
    std::vector<std::vector<Collective::Shard>> gathered;
    for (int i = 0; i < kMany; ++i) {
      const uint64_t each = 1 + common_() % 5000;
      std::vector<Collective::Shard> shards;
      for (uint32_t rank = 0; rank < ranks_.ranks(); ++rank) {
        shards.push_back({rank, 40'000ull * static_cast<uint64_t>(i) + each * rank, each});
      }
      gathered.push_back(shards);
      if (own_() % 8 == 0) delay();
      passes_.gather(shards, [&ended, i](const Status& status) { ended.push_back(status.ok() ? i : -1); });
    }
    PENSTOCK_TRY(wait_for_end([&](Collective::Then then) { passes_.barrier(Status(), std::move(then)); }));
    PENSTOCK_TRY(memory_.take());
    for (int i = 0; i < kMany; ++i) {
      if (ended.size() != kMany || ended[static_cast<size_t>(i)] != i)
        return different(i, "operations end in another order");
      for (const Collective::Shard& shard : gathered[static_cast<size_t>(i)]) PENSTOCK_TRY(expect_shard(0, shard));
    }
    return Status();
  }

  // An operation of one does not wait for those of the other, in whichever order they are begun.
  Status keeps_collectives_apart() {
    for (int round = 0; round < 30; ++round) {
      std::vector<std::byte> all(ranks_.ranks());
      const std::byte mine = pattern(round, ranks_.rank(), 0);
      auto barrier = [&] {
        return wait_for_end([&](Collective::Then then) { ranks_.commits().barrier(Status(), std::move(then)); });
      };
      auto exchange = [&] {
        return wait_for_end(
            [&](Collective::Then then) { passes_.exchange(std::span(&mine, 1), all, std::move(then)); });
      };
      Status first, second;
      std::thread one([&] { first = barrier(); });
      delay();
      second = exchange();
      one.join();
      PENSTOCK_TRY(first);
      PENSTOCK_TRY(second);
      for (uint32_t rank = 0; rank < ranks_.ranks(); ++rank) {
        if (all[rank] != pattern(round, rank, 0)) return different(round, "an exchange beside a barrier");
      }
    }
    return Status();
  }

  // More answers than one exchange takes; what any rank denies is denied, and nothing else.
  Status agrees_on_many() {
    for (int round = 0; round < 10; ++round) {
      const size_t count = 2 * kExchangeBytesMax + common_() % kExchangeBytesMax;
      std::vector<bool> answers(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        const uint64_t denying = common_() % (100 * ranks_.ranks());
        answers[i] = denying != ranks_.rank();
        expected[i] = denying >= ranks_.ranks();
      }
      delay();
      PENSTOCK_TRY(all_of_all(ranks_, answers));
      if (answers != expected) return different(round, text("what all say of ", count, " things"));
    }
    return Status();
  }

 private:
  int rounds(int all) const { return memory_.is_copy() ? std::min(all, kRoundsOfCopies) : all; }
  Status carry(const std::function<void(Collective::Then)>& operation) {
    PENSTOCK_TRY(memory_.give());
    PENSTOCK_TRY(wait_for_end(operation));
    return memory_.take();
  }
  // Where the sums of a reduction go, and where the host sees them.
  struct Target {
    std::span<std::byte> given, seen;
  };
  Target target(uint64_t bytes) {
    if (bytes == 0) return {};  // who has no part of the sums has no place for them either
    constexpr uint64_t kBehindTheValues = 3 << 18;
    if (memory_.is_copy()) {
      return {passes_.memory().subspan(kBehindTheValues, bytes), memory_.bytes().subspan(kBehindTheValues, bytes)};
    }
    sums_.resize(bytes);
    return {sums_, sums_};
  }
  // So that ranks come in any order.
  void delay() {
    if (own_() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 3000));
  }
  // `all` elements in runs for the ranks, the same drawn by each of them.
  std::vector<uint64_t> uneven(uint64_t all) {
    std::vector<uint64_t> ends(ranks_.ranks());
    for (uint64_t& end : ends) {
      const uint64_t drawn = common_() % (all + 1), place = common_() % 4;
      end = place == 0 ? 0 : place == 1 ? all : drawn;  // the first ranks have nothing, or the last ones
    }
    std::sort(ends.begin(), ends.end());
    ends.back() = all;
    return ends;
  }
  static uint64_t length_of(const std::vector<uint64_t>& ends, uint32_t rank) {
    return ends[rank] - (rank == 0 ? 0 : ends[rank - 1]);
  }
  static std::vector<Collective::Reduction::Part> parts_of(const std::vector<uint64_t>& ends) {
    std::vector<Collective::Reduction::Part> parts;
    for (uint64_t end : ends) parts.push_back({parts.empty() ? 0 : parts.back().end, end});
    return parts;
  }
  std::vector<Collective::Shard> shards_of(const std::vector<uint64_t>& ends, uint64_t offset) const {
    std::vector<Collective::Shard> shards;
    for (uint32_t rank = 0; rank < ranks_.ranks(); ++rank) {
      const uint64_t bytes = length_of(ends, rank);
      shards.push_back({rank, offset + ends[rank] - bytes, bytes});
    }
    return shards;
  }
  static std::byte pattern(int round, uint32_t rank, uint64_t i) {
    return static_cast<std::byte>((static_cast<uint64_t>(round) * 7919 + rank * 104'729 + i) * 2'654'435'761u >> 11);
  }
  void fill(int round) {
    const std::span<std::byte> memory = memory_.bytes();
    for (uint64_t i = 0; i < kMemoryBytes; ++i) memory[i] = pattern(round, ranks_.rank(), i);
  }
  Status expect_shard(int round, const Collective::Shard& shard) const {
    const std::span<const std::byte> memory = memory_.bytes();
    for (uint64_t i = shard.offset_bytes; i < shard.offset_bytes + shard.bytes; ++i) {
      if (memory[i] != pattern(round, shard.rank, i)) {
        return different(round, text("byte ", i, " is not that of rank ", shard.rank));
      }
    }
    return Status();
  }
  Status expect_gathered(int round, const std::vector<Collective::Shard>& shards) const {
    uint64_t at = 0;
    for (const Collective::Shard& shard : shards) {
      PENSTOCK_TRY(expect_shard(round, {ranks_.rank(), at, shard.offset_bytes - at}));  // its own still
      PENSTOCK_TRY(expect_shard(round, shard));
      at = shard.offset_bytes + shard.bytes;
    }
    return expect_shard(round, {ranks_.rank(), at, kMemoryBytes - at});
  }
  Status different(int round, const std::string& what) const {
    return Status(Code::kComparison, text("rank ", ranks_.rank(), ", round ", round, ": ", what));
  }

  // Of very different sizes, so that the order of adding tells.
  static float value(int round, uint32_t rank, uint64_t i) {
    std::minstd_rand random(static_cast<uint32_t>(static_cast<uint64_t>(round) * 31'337 + rank * 7919 + i * 13 + 1));
    random.discard(3);
    const float sign = random() % 2 ? 1.0f : -1.0f;
    return sign * std::ldexp(static_cast<float>(random() % 65'536), static_cast<int>(random() % 16) - 18);
  }
  static uint32_t bits(float value) {
    uint32_t of;
    std::memcpy(&of, &value, sizeof of);
    return of;
  }
  static float rounded(Dtype dtype, float value) {
    if (dtype == Dtype::bf16) return arithmetic::float_of_bf16(arithmetic::bf16_of_float(value));
    if (dtype == Dtype::fp16) return arithmetic::float_of_fp16(arithmetic::fp16_of_float(value));
    return value;
  }
  void store(Dtype dtype, uint64_t offset_bytes, uint64_t i, float value) {
    std::byte* at = memory_.bytes().data() + offset_bytes + i * bytes_of(dtype);
    const uint16_t half = dtype == Dtype::bf16 ? arithmetic::bf16_of_float(value) : arithmetic::fp16_of_float(value);
    if (dtype == Dtype::fp32) {
      std::memcpy(at, &value, sizeof value);
    } else {
      std::memcpy(at, &half, sizeof half);
    }
  }
  static float load(Dtype dtype, const std::byte* from, uint64_t i) {
    float value;
    uint16_t half;
    if (dtype == Dtype::fp32) {
      std::memcpy(&value, from + i * sizeof value, sizeof value);
      return value;
    }
    std::memcpy(&half, from + i * sizeof half, sizeof half);
    return dtype == Dtype::bf16 ? arithmetic::float_of_bf16(half) : arithmetic::float_of_fp16(half);
  }

  Ranks& ranks_;
  Collective& passes_;
  const test::CollectiveMemory& memory_;
  std::vector<std::byte> sums_;
  std::mt19937_64 common_, own_;  // drawn alike by all ranks; by each for itself
};

}  // namespace penstock::engine
