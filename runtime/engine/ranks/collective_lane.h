// CollectiveLane carries out a rank's collectives on a thread of its own, one after another in the order in which they
// were posted, while the trainer computes. One that was announced begins when what it gives has been provided.
//
// After the first that is refused none begins: all later ones end with that refusal.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "tiering/status.h"

namespace penstock::engine {

class CollectiveLane {
 public:
  static Result<std::shared_ptr<CollectiveLane>> make();
  ~CollectiveLane() { stop(); }
  CollectiveLane(const CollectiveLane&) = delete;
  CollectiveLane& operator=(const CollectiveLane&) = delete;

  using Number = uint64_t;
  using Work = std::function<Status()>;
  Number post(Work work) { return push(std::move(work), Status()); }
  Number announce(Work work) { return push(std::move(work), std::nullopt); }
  // Of what was announced: a refusal is its end. Any thread.
  void provide(Number number, const Status& status);

  bool has_ended(Number number) const;
  // Until it has ended.
  Status wait_for(Number number);
  // Until all have.
  Status wait_for_all();
  // Seconds with one under way.
  double busy_s() const;

  // Returns when the one under way has ended; those behind it do not begin.
  void stop();

 private:
  CollectiveLane() = default;

  struct Item {
    Work work;
    std::optional<Status> provided;
  };
  Number push(Work work, std::optional<Status> provided);
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_, ended_;
  std::deque<Item> waiting_;  // GUARDED_BY(mutex_); the first has number ended_before_
  Number ended_before_ = 0;   // GUARDED_BY(mutex_)
  Status status_;             // GUARDED_BY(mutex_)
  double busy_s_ = 0;         // GUARDED_BY(mutex_)
  bool stopping_ = false;     // GUARDED_BY(mutex_)
  std::thread thread_;
};

}  // namespace penstock::engine
