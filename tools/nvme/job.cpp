#include "tools/nvme/job.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>

#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTickPause = std::chrono::milliseconds(50);
constexpr double kRatePause = 0.1;
constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15u;  // of 2^64: steps of splitmix64

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

uint64_t mixed(uint64_t state) {  // splitmix64
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

// Where the next request of one direction goes on one file.
class Cursor {
 public:
  Cursor(const Job& job, const File& file, uint64_t first_block)
      : random_(job.pattern == Pattern::random),
        block_bytes_(job.block_bytes),
        blocks_(file.size_bytes() / job.block_bytes),
        next_(first_block % blocks_) {}

  uint64_t next_offset() {
    const uint64_t block = random_ ? mixed(++draws_ * kGoldenRatio) % blocks_ : next_++ % blocks_;
    return block * block_bytes_;
  }

 private:
  const bool random_;
  const uint64_t block_bytes_, blocks_;
  uint64_t next_;
  uint64_t draws_ = 0;
};

// One file and its share of the job.
class Stream {
 public:
  Stream(const Job& job, const File& on)
      : file(on),
        reads(job, on, 0),
        writes(job, on, job.read_share > 0 && job.mix == Mix::apart ? on.size_bytes() / job.block_bytes / 2 : 0),
        share_(job.read_share),
        mix_(job.mix) {}

  bool next_reads() {
    if (mix_ == Mix::drawn) return static_cast<double>(mixed(++draws_ * kGoldenRatio) >> 11) * 0x1p-53 < share_;
    read_debt_ += share_;
    const bool due = read_debt_ >= 1;
    if (due) read_debt_ -= 1;
    return due;
  }

  const File& file;
  Cursor reads, writes;

 private:
  const double share_;
  const Mix mix_;
  double read_debt_ = 0.5;  // reads that are due; half to begin with, so that shares come out in the middle
  uint64_t draws_ = 0;
};

class Load {
 public:
  Load(const Job& job, IoEngine& engine, std::span<const File* const> files) : job_(job), engine_(engine) {
    for (const File* file : files) streams_.emplace_back(job, *file);
  }

  Result<JobResult> run(std::span<std::byte> memory, const Tick& tick) {
    const double cpu_before = cpu_seconds();
    start_ = Clock::now();
    blocks_.resize(memory.size() / job_.block_bytes);
    for (Block& block : blocks_) {
      block.lease = Lease::over(Tier::host, memory.first(job_.block_bytes));
      memory = memory.subspan(job_.block_bytes);
      idle_.push_back(&block);
    }
    for (uint32_t i = 0; i < job_.depth; ++i) {
      for (Stream& stream : streams_) issue(stream, start_);
    }
    follow(tick);
    result_.seconds = seconds_between(start_, Clock::now());
    result_.cpu_s = cpu_seconds() - cpu_before;
    PENSTOCK_TRY(refusal_);
    result_.latency.add(result_.read_latency);
    result_.latency.add(result_.write_latency);
    return std::move(result_);
  }

 private:
  // A block of memory, and the request that it is under way with.
  struct Block {
    Lease lease;
    Stream* stream = nullptr;
    bool reads = false;
    Clock::time_point issued;
  };

  // Waits until nothing is under way; meanwhile every request that ends starts the next.
  void follow(const Tick& tick) {
    auto next_tick = start_;
    while (under_way_ > 0) {
      engine_.wait_until([&] { return under_way_ == 0 || Clock::now() >= next_tick; });
      const auto now = Clock::now();
      next_tick = now + kTickPause;
      note_rate(now);
      const Status wish = tick(share_done(now));
      if (!wish.ok()) stop(wish);
    }
  }

  void issue(Stream& stream, Clock::time_point now) {
    Block& block = *idle_.front();
    idle_.pop_front();
    asked_bytes_ += job_.block_bytes;
    ++under_way_;
    block.stream = &stream;
    block.reads = stream.next_reads();
    block.issued = now;
    Transfer transfer = block.reads ? engine_.read(stream.file, stream.reads.next_offset(), std::move(block.lease))
                                    : engine_.write(stream.file, stream.writes.next_offset(), std::move(block.lease));
    std::move(transfer).then([this, &block](Result<Lease> back) { ended(block, std::move(back)); });
  }

  void ended(Block& block, Result<Lease> back) {
    --under_way_;
    if (!back.ok()) return stop(back.status());
    const auto now = Clock::now();
    (block.reads ? result_.read_latency : result_.write_latency)
        .add(static_cast<uint64_t>(std::chrono::nanoseconds(now - block.issued).count()));
    (block.reads ? result_.read_bytes : result_.written_bytes) += job_.block_bytes;
    ++result_.requests;
    block.lease = std::move(*back);
    idle_.push_back(&block);
    if (share_done(now) < 1) issue(*block.stream, now);
  }

  void stop(const Status& why) {
    if (refusal_.ok()) refusal_ = why;
  }

  double share_done(Clock::time_point now) const {
    if (!refusal_.ok()) return 1;
    const double by_time = job_.seconds > 0 ? seconds_between(start_, now) / job_.seconds : 0;
    const double by_bytes = job_.bytes > 0 ? static_cast<double>(asked_bytes_) / static_cast<double>(job_.bytes) : 0;
    return std::min(1.0, std::max(by_time, by_bytes));
  }

  void note_rate(Clock::time_point now) {
    const double at = seconds_between(start_, now);
    if (at - rate_at_ < kRatePause) return;
    const uint64_t bytes = result_.read_bytes + result_.written_bytes;
    result_.rate.push_back({at, static_cast<double>(bytes - rate_bytes_) / (at - rate_at_) / 1e9});
    rate_at_ = at;
    rate_bytes_ = bytes;
  }

  const Job job_;
  IoEngine& engine_;
  std::vector<Stream> streams_;
  std::vector<Block> blocks_;
  std::deque<Block*> idle_;  // the one that has been so for longest first
  Clock::time_point start_;
  uint64_t asked_bytes_ = 0;
  uint64_t under_way_ = 0;
  double rate_at_ = 0;
  uint64_t rate_bytes_ = 0;
  Status refusal_;
  JobResult result_;
};

uint64_t memory_of(const Job& job) { return std::max(job.memory_bytes, job.depth * job.block_bytes); }

}  // namespace

std::string name_of(const Job& job) {
  std::string name = job.read_share == 1   ? "read"
                     : job.read_share == 0 ? "write"
                                           : text(fixed(job.read_share * 100, 0), " % read");
  if (job.pattern == Pattern::random) name += " random";
  return text(name, " ", bytes_flag_text(job.block_bytes), " depth ", job.depth);
}

Result<JobResult> run_job(const Job& job, IoEngine& engine, std::span<const File* const> files,
                          std::span<std::byte> memory, const Tick& tick) {
  CHECK(job.seconds > 0 || job.bytes > 0, "a job that would never end");
  CHECK(memory.size() >= files.size() * memory_of(job), "memory for the blocks under way");
  return Load(job, engine, files).run(memory.first(files.size() * memory_of(job)), tick);
}

void fill_incompressible(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t at = 0; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = mixed(seed += kGoldenRatio);
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
}

}  // namespace penstock::tools
