#include "cpu_optim/thread_trial.h"

#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock::cpu_optim {
namespace {

size_t threads_of_this_process() {
  struct stat tasks;
  return stat("/proc/self/task", &tasks) == 0 ? tasks.st_nlink - 2 : 0;
}

}  // namespace

Status check_threads_can_start(uint32_t threads) {
  const size_t before = threads_of_this_process();
  std::vector<std::thread> started;
  started.reserve(threads);
  std::latch over(1);
  Status status;
  try {
    while (started.size() < threads) started.emplace_back([&over] { over.wait(); });
  } catch (const std::system_error& error) {
    status = thread_status(text("start update threads: ", started.size(), " of ", threads), error.code().value(),
                           threads > 1 ? "ask for fewer threads, or " : "");
  }
  over.count_down();
  for (std::thread& thread : started) thread.join();
  // The system counts a thread for a moment after it was joined.
  for (int i = 0; i < 1000 && threads_of_this_process() > before; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return status;
}

}  // namespace penstock::cpu_optim
