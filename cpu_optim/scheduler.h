// Scheduler keeps oneTBB for as long as it lives, and ends its threads.
#pragma once

#include <oneapi/tbb/global_control.h>

#include <new>

namespace penstock::cpu_optim {

// At its end it waits until oneTBB's threads have ended, if nothing else in the program uses oneTBB: they count against
// the user's limit of threads, whoever destroys its workers may start other threads next, and a forked child has none
// of them and believes that it does.
//
// Every thread that has given oneTBB work uses it until it ends a Scheduler itself, or ends.
class Scheduler {
 public:
  Scheduler() : handle_(tbb::attach()) {}
  ~Scheduler() { tbb::finalize(handle_, std::nothrow); }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

 private:
  tbb::task_scheduler_handle handle_;
};

}  // namespace penstock::cpu_optim
