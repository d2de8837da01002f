// WorkerPinning keeps each worker of a oneTBB arena on one processor.
#pragma once

#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>

#include <atomic>
#include <vector>

#include "cpu_optim/processor_set.h"

namespace penstock::cpu_optim {

// Pins each worker while it is inside the arena: a worker of oneTBB also serves the program's other arenas.
class WorkerPinning final : public tbb::task_scheduler_observer {
 public:
  // `cpus` outlive it: the worker in slot i is pinned to cpus[i % size].
  WorkerPinning(tbb::task_arena& arena, const std::vector<int>& cpus);
  ~WorkerPinning() override;

 private:
  void on_scheduler_entry(bool) override;
  void on_scheduler_exit(bool) override;

  static thread_local ProcessorSet before_;
  const std::vector<int>& cpus_;
  std::atomic<int> inside_{0};
};

}  // namespace penstock::cpu_optim
