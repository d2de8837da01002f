#include "cpu_optim/worker_pinning.h"

#include <thread>

#include "cpu_optim/task_order.h"

namespace penstock::cpu_optim {

thread_local ProcessorSet WorkerPinning::before_;

WorkerPinning::WorkerPinning(tbb::task_arena& arena, const std::vector<int>& cpus)
    : task_scheduler_observer(arena), cpus_(cpus) {
  task_order::before_create();
  observe(true);
}

// A worker that is still inside must be seen to leave, or it would stay pinned.
WorkerPinning::~WorkerPinning() {
  while (inside_ > 0) std::this_thread::yield();
  observe(false);
  task_order::after_wait();
}

void WorkerPinning::on_scheduler_entry(bool) {
  task_order::at_begin();
  ++inside_;
  const auto slot = static_cast<size_t>(tbb::this_task_arena::current_thread_index());
  before_ = ProcessorSet::allowed();
  // A processor that has gone offline since validate() leaves the worker unpinned.
  ProcessorSet::of_one(cpus_[slot % cpus_.size()]).pin_this_thread();
}

void WorkerPinning::on_scheduler_exit(bool) {
  before_.pin_this_thread();
  task_order::at_end();
  --inside_;
}

}  // namespace penstock::cpu_optim
