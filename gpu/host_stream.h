// HostStream runs tasks in order on one thread. It is the host's counterpart of a device stream.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace penstock::gpu {

class HostStream {
 public:
  HostStream();
  // Runs the remaining tasks, then ends the thread.
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // May be called from any thread.
  void put(std::function<void()> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  // GUARDED_BY(mutex_)
  std::deque<std::function<void()>> waiting_;
  bool closing_ = false;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace penstock::gpu
