#include "runtime/engine/ranks/host_collective.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

#include "tiering/store/store_hash.h"

namespace penstock::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kRemedyMark = '\x1f';  // between a verdict's message and its remedy

enum class Kind : uint64_t { gather = 1, reduce, exchange, barrier, collect };

// Of what all ranks must say alike.
template <typename... Numbers>
uint64_t digest_of(Kind kind, Numbers... numbers) {
  const std::array<uint64_t, sizeof...(Numbers)> all{static_cast<uint64_t>(numbers)...};
  return store_hash(std::as_bytes(std::span(all)), static_cast<uint64_t>(kind));
}

// What others see of a rank that is in an operation.
class Waiting {
 public:
  Waiting(ControlOfRank& mine, uint32_t channel) : mine_(mine), channel_(channel) {
    mine_.channels[channel_].waits.store(1, std::memory_order_relaxed);
  }
  // What it does next begins now.
  ~Waiting() {
    mine_.progress.fetch_add(1, std::memory_order_relaxed);
    mine_.channels[channel_].waits.store(0, std::memory_order_relaxed);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  ControlOfRank& mine_;
  const uint32_t channel_;
};

bool waits_for_others(const ControlOfRank& rank) {
  return std::any_of(rank.channels.begin(), rank.channels.end(),
                     [](const ChannelOfRank& channel) { return channel.waits.load(std::memory_order_relaxed) != 0; });
}

}  // namespace

Result<std::unique_ptr<HostCollective>> HostCollective::make(const SharedMemory& memory, uint32_t channel,
                                                             uint32_t rank, std::unique_ptr<Carrier> carrier,
                                                             const RanksOptions& options) {
  auto made = std::unique_ptr<HostCollective>(new HostCollective(memory, channel, rank, std::move(carrier), options));
  try {
    made->thread_ = std::thread([collective = made.get()] { collective->run(); });
  } catch (const std::system_error& error) {
    return thread_status("ranks: start a thread that moves bytes: 0 of 1", error.code().value());
  }
  return made;
}

HostCollective::~HostCollective() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

HostCollective::Operation HostCollective::make_operation(std::string name, uint64_t digest, Then then) {
  Operation operation;
  operation.name = std::move(name);
  operation.word.digest = digest;
  operation.then = std::move(then);
  return operation;
}

void HostCollective::begin(Operation operation) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(operation));
  changed_.notify_one();
}

void HostCollective::run() {
  while (true) {
    Operation operation;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      operation = std::move(waiting_.front());
      waiting_.pop_front();
    }
    operation.then(carry_out(operation));
  }
}

Status HostCollective::carry_out(const Operation& operation) {
  PENSTOCK_TRY(memory_.failure());
  const uint64_t number = ++number_;
  ChannelOfRank& mine = of(rank_);
  mine.words[number % 2] = operation.word;
  mine.begun.store(number, std::memory_order_release);
  const Waiting waiting(memory_.control().ranks[rank_], channel_);
  memory_.ring(channel_);
  PENSTOCK_TRY(wait_for_all(&ChannelOfRank::begun, number, operation.name));
  PENSTOCK_TRY(refuse_others(operation));
  const Status worked = operation.work ? operation.work(number) : Status();
  if (!worked.ok()) return operation.is_carried ? end_all(operation, worked) : worked;
  mine.done.store(number, std::memory_order_release);
  if (!operation.is_carried) return Status();
  memory_.ring(channel_);
  return wait_for_all(&ChannelOfRank::done, number, operation.name);
}

Status HostCollective::end_all(const Operation& operation, const Status& why) const {
  memory_.fail(Status(
      why.code(),
      text(memory_.name_of(rank_), " failed in step ", step_of(rank_), ": ", operation.name, ": ", why.message()),
      why.remedy()));
  return memory_.failure();
}

std::chrono::milliseconds HostCollective::away_at_most() const {
  uint64_t most_ms = static_cast<uint64_t>(hangs_after_.count());
  for (uint32_t other = 0; other < ranks(); ++other) {
    const ControlOfRank& control = memory_.control().ranks[other];
    most_ms = std::max({most_ms, 3 * control.longest_absence_ms.load(std::memory_order_relaxed),
                        10 * control.expected_pass_ms.load(std::memory_order_relaxed)});
  }
  return std::min(std::chrono::milliseconds(most_ms), late_at_most_);
}

Status HostCollective::wait_for_all(Counter counter, uint64_t number, const std::string& name) const {
  const Clock::time_point begin = Clock::now();
  Clock::time_point looked = begin, since = begin;  // that the other is as it is
  Clock::time_point lived = begin;                  // when the other's process last showed a sign of life
  uint64_t absence = 0, progress = 0, sign = 0;
  for (uint32_t other = 0; other < ranks();) {
    const uint32_t heard = memory_.control().bells[channel_].load(std::memory_order_seq_cst);
    const ControlOfRank& control = memory_.control().ranks[other];
    const bool has_left = control.has_left.load(std::memory_order_acquire) != 0;
    if ((of(other).*counter).load(std::memory_order_acquire) >= number) {
      ++other;
      absence = progress = 0;
      since = Clock::now();
      continue;
    }
    PENSTOCK_TRY(memory_.failure());
    const Clock::time_point now = Clock::now();
    // Where this process was stopped itself, or the whole machine, nothing is known of the other's time.
    const bool was_away = now - std::exchange(looked, now) > hangs_after_ / 4;
    const uint64_t was_absent = std::exchange(absence, control.absence.load(std::memory_order_relaxed));
    const uint64_t had_ended = std::exchange(progress, control.progress.load(std::memory_order_relaxed));
    const bool goes_on = absence == 0 && (progress != had_ended || waits_for_others(control));
    if (was_away || absence != was_absent || goes_on) since = now;
    const uint64_t had_sign = std::exchange(sign, control.sign_of_life.load(std::memory_order_relaxed));
    if (sign != had_sign) lived = now;
    // A process that is stopped itself is for the watching thread to name.
    const bool lives = now - lived < away_at_most() / 2;
    // Its engine goes on, or is still; outside of steps nobody knows.
    const bool is_still =
        absence == 0 && control.in_step.load(std::memory_order_relaxed) != 0 && now - since > away_at_most();
    const bool is_timed = absence != 0 || is_still;
    const std::chrono::milliseconds most = is_timed ? away_at_most() : late_at_most_;
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - (is_timed ? since : begin));
    if (has_left) {
      memory_.fail(
          Status(Code::kEnvironment, text(memory_.name_of(other), " ended in step ", step_of(other), ", while rank ",
                                          rank_, " waited for it in step ", step_of(rank_), ": ", name)));
    } else if (waited > most && (lives || !is_timed)) {
      memory_.fail(
          Status(Code::kEnvironment,
                 text(memory_.name_of(other), " hangs in step ", step_of(other), ": ",
                      absence != 0 ? text("its trainer has been computing for ", waited.count() / 1000.0,
                                          " s, at most ", most.count() / 1000.0, " s expected")
                      : is_still   ? text("nothing has ended in its engine for ", waited.count() / 1000.0,
                                          " s, while rank ", rank_, " waits for it: ", name)
                                   : text("rank ", rank_, " waited ", waited.count() / 1000.0, " s for it: ", name)),
                 "where its passes take so long, a longer `penstock.hangs_after_s`"));
    } else {
      memory_.listen(channel_, heard);
    }
  }
  return Status();
}

Status HostCollective::refuse_others(const Operation& operation) const {
  for (uint32_t other = 0; other < ranks(); ++other) {
    if (word_of(other, number_).digest == operation.word.digest) continue;
    memory_.fail(
        Status(Code::kUsage,
               text(memory_.name_of(other), " in step ", step_of(other), " begins another operation than rank ", rank_,
                    " in step ", step_of(rank_), ": ", operation.name, ", number ", number_),
               "all ranks call the same verbs in the same order"));
    return memory_.failure();
  }
  return Status();
}

// Of those that are named together.
Status HostCollective::refuse_other_shards(std::span<const Shard> shards, uint64_t number) const {
  auto digest = [&](uint32_t rank) {
    uint64_t given;
    std::memcpy(&given, word_of(rank, number).given.data(), sizeof given);
    return given;
  };
  for (const Shard& shard : shards) {
    if (digest(shard.rank) == digest(rank_)) continue;
    memory_.fail(
        Status(Code::kUsage,
               text(memory_.name_of(shard.rank), " in step ", step_of(shard.rank), " gathers other shards than rank ",
                    rank_, " in step ", step_of(rank_), ", number ", number),
               "all ranks call the same verbs in the same order"));
    return memory_.failure();
  }
  return Status();
}

void HostCollective::gather(std::span<const Shard> shards, Then then) {
  uint64_t taken = 0;
  uint64_t digest = 0;
  bool is_named = shards.empty();
  for (const Shard& shard : shards) {
    is_named = is_named || shard.rank == rank_;
    digest = digest_of(Kind::gather, digest, shard.rank, shard.offset_bytes, shard.bytes);
    CHECK(shard.rank < ranks(), "gather from rank ", shard.rank, " of ", ranks());
    const uint64_t end = shard.offset_bytes + shard.bytes;
    CHECK(end <= memory().size(), "gather of ", shard.bytes, " B at ", shard.offset_bytes, ": the memory has ",
          memory().size(), " B");
    if (shard.rank != rank_) taken += shard.bytes;
  }
  CHECK(is_named, "gather: rank ", rank_, " takes ", taken, " B and is not among those that give");
  // What groups of ranks gather differs from group to group.
  Operation operation = make_operation(text("gather of ", taken, " B"), digest_of(Kind::gather), std::move(then));
  std::memcpy(operation.word.given.data(), &digest, sizeof digest);
  operation.is_carried = true;
  operation.work = [this, all = std::vector<Shard>(shards.begin(), shards.end())](uint64_t number) {
    PENSTOCK_TRY(refuse_other_shards(all, number));
    return carrier_->gather(all);
  };
  begin(std::move(operation));
}

void HostCollective::reduce(const Reduction& reduction, Then then) {
  CHECK(reduction.parts.size() == ranks(), "reduce: ", reduction.parts.size(), " parts of ", ranks(), " ranks");
  const Reduction::Part mine = reduction.parts[rank_];
  CHECK(reduction.target.size() >= (mine.end - mine.begin) * bytes_of(reduction.target_dtype),
        "reduce: ", reduction.target.size(), " B for ", mine.end - mine.begin, " sums of ",
        name_of(reduction.target_dtype));
  uint64_t digest = digest_of(Kind::reduce, reduction.dtype, reduction.target_dtype, reduction.offset_bytes);
  uint64_t bytes = 0;
  for (const Reduction::Part& part : reduction.parts) {
    digest = digest_of(Kind::reduce, digest, part.begin, part.end);
    bytes = std::max(bytes, part.end * bytes_of(reduction.dtype));
  }
  CHECK(reduction.offset_bytes % sizeof(float) == 0 && reduction.offset_bytes + bytes <= memory().size(), "reduce of ",
        bytes, " B at ", reduction.offset_bytes, ": the memory has ", memory().size(), " B");
  Operation operation = make_operation(text("reduction of ", bytes, " B"), digest, std::move(then));
  operation.is_carried = true;
  operation.work = [this, reduction](uint64_t) { return carrier_->reduce(reduction); };
  begin(std::move(operation));
}

void HostCollective::collect(const Collection& collection, Then then) {
  CHECK(collection.parts.size() == ranks(), "collect: ", collection.parts.size(), " parts of ", ranks(), " ranks");
  uint64_t digest = digest_of(Kind::collect, collection.offset_bytes);
  uint64_t bytes = 0;
  for (const Collection::Part& part : collection.parts) {
    digest = digest_of(Kind::collect, digest, part.begin, part.end);
    bytes = std::max(bytes, part.end);
  }
  const Collection::Part& mine = collection.parts[rank_];
  const uint64_t taken = (mine.end - mine.begin) * ranks(), there = memory().size();
  CHECK(collection.offset_bytes + bytes <= there && collection.target_offset_bytes + taken <= there, "collect of ",
        bytes, " B at ", collection.offset_bytes, ", ", taken, " B to ", collection.target_offset_bytes,
        ": the memory has ", there, " B");
  Operation operation = make_operation(text("collection of ", bytes, " B"), digest, std::move(then));
  operation.is_carried = true;
  operation.work = [this, collection](uint64_t) { return carrier_->collect(collection); };
  begin(std::move(operation));
}

void HostCollective::exchange(std::span<const std::byte> mine, std::span<std::byte> all, Then then) {
  CHECK(mine.size() <= kExchangeBytesMax && all.size() >= mine.size() * ranks(), "exchange of ", mine.size(),
        " B into ", all.size(), " B");
  const uint64_t bytes = mine.size();
  Operation operation =
      make_operation(text("exchange of ", bytes, " B"), digest_of(Kind::exchange, bytes), std::move(then));
  std::copy(mine.begin(), mine.end(), operation.word.given.begin());
  operation.work = [this, bytes, all](uint64_t number) {
    for (uint32_t other = 0; other < ranks(); ++other) {
      std::memcpy(all.data() + other * bytes, word_of(other, number).given.data(), bytes);
    }
    return Status();
  };
  begin(std::move(operation));
}

void HostCollective::barrier(const Status& mine, Then then) {
  Operation operation = make_operation("barrier", digest_of(Kind::barrier), std::move(then));
  const std::string said = mine.ok() ? "" : mine.message() + kRemedyMark + mine.remedy();
  operation.word.code = static_cast<uint32_t>(mine.code());
  operation.word.bytes = static_cast<uint32_t>(std::min(said.size(), kExchangeBytesMax));
  std::memcpy(operation.word.given.data(), said.data(), operation.word.bytes);
  operation.work = [this](uint64_t number) {
    for (uint32_t other = 0; other < ranks(); ++other) {
      const Word& word = word_of(other, number);
      if (word.code == 0) continue;
      const std::string theirs(reinterpret_cast<const char*>(word.given.data()), word.bytes);
      const size_t mark = std::min(theirs.find(kRemedyMark), theirs.size());
      return Status(static_cast<Code>(word.code),
                    text(memory_.name_of(other), " in step ", step_of(other), ": ", theirs.substr(0, mark)),
                    mark < theirs.size() ? theirs.substr(mark + 1) : "");
    }
    return Status();
  };
  begin(std::move(operation));
}

}  // namespace penstock::engine
