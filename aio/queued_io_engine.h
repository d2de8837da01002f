// QueuedIoEngine is an IoEngine over any backend. It cuts transfers into pieces, keeps each drive at its queue depth
// with the most urgent ones, continues short transfers, retries what may be retried, and checks every byte count.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aio/backend.h"
#include "aio/coarse_clock.h"
#include "aio/drive_queue.h"
#include "aio/wakeup.h"

namespace penstock::aio {

struct IoEngineOptions {
  DriveOptions drive;  // for every drive that is not in `drives`
  std::map<uint32_t, DriveOptions> drives;
  // The watchdog reports every piece that has been with the kernel for longer, once. Zero turns it off.
  std::chrono::nanoseconds stuck_after = std::chrono::seconds(30);
  std::function<void(const std::string& report)> on_stuck;  // empty: a line on stderr
};

class QueuedIoEngine final : public IoEngine {
 public:
  explicit QueuedIoEngine(std::unique_ptr<IoBackend> backend, IoEngineOptions options = {});
  ~QueuedIoEngine() override;

  using IoEngine::read;
  using IoEngine::write;
  Transfer read(std::span<const Extent> extents, Lease into, Deadline deadline) override;
  Transfer write(std::span<const Extent> extents, Lease from, Deadline deadline) override;
  Transfer flush(const File& file) override;

  size_t poll() override;
  size_t wait(std::chrono::nanoseconds timeout) override;
  void wait_until(const std::function<bool()>& done) override;
  Result<int> completion_fd() const override;
  std::chrono::nanoseconds poll_pause() const override;
  void drive_until_ended(const TransferState& state) override;
  void cancel_and_drain() override;

  uint64_t register_memory(std::span<std::byte> memory) override;
  void register_file(const File& file) override { backend_->register_file(file); }
  void unregister_file(const File& file) override { backend_->unregister_file(file); }
  std::string description() const override { return backend_->description(); }
  DriveCounters counters(uint32_t drive) const override;

 private:
  using Clock = std::chrono::steady_clock;

  // A piece that is with the backend. Its index is the piece's tag.
  struct InFlight {
    PendingIo piece;
    DriveQueue* queue = nullptr;
    CoarseClock::time_point since;
    bool reported = false;
  };
  // A piece that will be retried.
  struct Delayed {
    Clock::time_point due;
    PendingIo piece;
  };

  Transfer accept(Operation operation, std::span<const Extent> extents, Lease lease, Deadline deadline);
  DriveQueue& queue_of(uint32_t drive);

  size_t step(std::chrono::nanoseconds timeout);
  void issue();
  bool submit_next(DriveQueue& queue);
  void resume_delayed();
  void complete(const Completion& completion);
  void continue_or_refuse(InFlight& slot, int32_t result);
  void close_part(const std::shared_ptr<Request>& request, Status outcome);
  size_t deliver_ended();
  void set_alarm() const;

  bool anything_under_way() const { return in_flight_ > 0 || !delayed_.empty() || !ended_.empty() || waiting(); }
  bool waiting() const;
  uint32_t worth_waking_for() const;
  std::chrono::nanoseconds until_next_alarm(std::chrono::nanoseconds timeout) const;
  void watch();

  const IoEngineOptions options_;
  std::unique_ptr<IoBackend> backend_;
  mutable std::unique_ptr<Wakeup> wakeup_;
  std::vector<std::unique_ptr<DriveQueue>> queues_;
  std::vector<InFlight> slots_;
  std::vector<uint32_t> free_slots_;
  uint32_t in_flight_ = 0;
  uint64_t arrivals_ = 0;
  bool draining_ = false;         // new requests are refused
  bool returns_to_wait_ = false;  // the caller calls step() again as soon as completions are delivered
  std::vector<Delayed> delayed_;
  std::deque<std::shared_ptr<Request>> ended_;  // whose end has not been delivered yet
  CoarseClock::time_point next_watch_;
};

}  // namespace penstock::aio
