#include "runtime/engine/ranks/ranks.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "cpu_optim/gradient.h"
#include "runtime/engine/ranks/host_ranks.h"
#include "tiering/buffer.h"

namespace penstock::engine {
namespace {

// There is nobody to wait for: every operation ends inside its call.
class SoloCollective final : public Collective {
 public:
  explicit SoloCollective(uint64_t memory_bytes) : memory_(Buffer::on_heap(memory_bytes)) {}

  uint32_t rank() const override { return 0; }
  uint32_t ranks() const override { return 1; }
  std::span<std::byte> memory() const override { return memory_.bytes(); }
  Tier tier() const override { return Tier::host; }
  void gather(std::span<const Shard>, Then then) override { then(Status()); }
  void reduce(const Reduction& reduction, Then then) override {
    const auto [begin, end] = reduction.parts.front();
    const std::byte* values = memory_.data() + reduction.offset_bytes + begin * bytes_of(reduction.dtype);
    kernels_.cast(reduction.dtype, values, reduction.target_dtype, reduction.target.data(), end - begin);
    then(Status());
  }
  void collect(const Collection&, Then then) override { then(Status()); }
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all, Then then) override {
    std::copy(mine.begin(), mine.end(), all.begin());
    then(Status());
  }
  void barrier(const Status& mine, Then then) override { then(mine); }

 private:
  const Buffer memory_;
  const cpu_optim::GradientKernels kernels_;
};

class SoloRanks final : public Ranks {
 public:
  explicit SoloRanks(uint64_t memory_bytes) : passes_(memory_bytes), commits_(0) {}

  uint32_t rank() const override { return 0; }
  uint32_t ranks() const override { return 1; }
  std::string name_of(uint32_t rank) const override { return text("rank ", rank); }
  Collective& passes() override { return passes_; }
  Collective& commits() override { return commits_; }
  Collective* among_devices() override { return nullptr; }
  void at_step(uint64_t) override {}
  void came() override {}
  void went() override {}
  void step_began() override {}
  void step_ended() override {}
  void progressed() override {}
  void expect_pass(double) override {}
  void fail(const Status& why) override {
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = why;
  }
  Status status() const override {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  SoloCollective passes_, commits_;
  mutable std::mutex mutex_;
  Status status_;  // GUARDED_BY(mutex_)
};

}  // namespace

Result<std::unique_ptr<Ranks>> meet(const RanksOptions& options) {
  if (options.place.ranks > 1 || options.device) return HostRanks::make(options);
  return std::unique_ptr<Ranks>(std::make_unique<SoloRanks>(options.memory_bytes));
}

Status wait_for_end(const std::function<void(Collective::Then)>& begin) {
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<Status> outcome;
  begin([&](const Status& status) {
    std::lock_guard lock(mutex);  // whoever waits may return as soon as it is released
    outcome = status;
    ended.notify_one();
  });
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return outcome.has_value(); });
  return *outcome;
}

}  // namespace penstock::engine
