#include "cpu_optim/update_workers.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <semaphore>
#include <utility>

#include "cpu_optim/processor_set.h"
#include "cpu_optim/scheduler.h"
#include "cpu_optim/task_order.h"
#include "cpu_optim/thread_trial.h"
#include "cpu_optim/tile_task.h"
#include "cpu_optim/worker_pinning.h"
#include "tiering/check.h"

#if defined(PENSTOCK_TSAN)
// oneTBB's headers create and read its tasks in instrumented code, and its library orders them. Its threads free what
// others of them had with delete[], which is used for nothing else here.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race_top:oneapi/tbb/\n"
         "race_top:libtbb\n"
         "race_top:operator delete[]\n"
         "race:task_arena::initialize()\n"
         "race:new_object<tbb::\n"
         "race:delete_object<tbb::\n"
         "race:fold_tree<tbb::\n";
}
#endif

namespace penstock::cpu_optim {
namespace {

// Pieces per thread in for_pieces(): enough that a preempted worker does not hold up the rest for long.
constexpr uint64_t kPiecesPerThread = 8;

tbb::numa_node_id numa_id(const UpdateWorkersOptions& options) {
  return options.numa_node < 0 ? tbb::task_arena::automatic
                               : tbb::info::numa_nodes().at(static_cast<size_t>(options.numa_node));
}

uint32_t threads_wanted(const UpdateWorkersOptions& options) {
  if (options.threads != 0) return options.threads;
  if (!options.cpus.empty()) return static_cast<uint32_t>(options.cpus.size());
  if (options.numa_node >= 0) return static_cast<uint32_t>(tbb::info::default_concurrency(numa_id(options)));
  const int processors = ProcessorSet::allowed().count();
  CHECK(processors > 0, "sched_getaffinity failed");
  return std::min(static_cast<uint32_t>(processors), UpdateWorkersOptions::kThreadsMax);
}

// Pieces that several threads take from, one after another. Of share_pieces().
class SharedPieces {
 public:
  SharedPieces(uint64_t count, uint64_t piece, const std::function<void(uint64_t, uint64_t)>& body)
      : count_(count), piece_(piece), pieces_(ceil_div(count, piece)), body_(body) {}

  uint64_t pieces() const { return pieces_; }

  // Until none is left. `body` is touched only as long as there is one, for so long wait() does not return.
  void work() {
    uint64_t ended = 0;
    for (uint64_t number; (number = next_.fetch_add(1)) < pieces_; ++ended) {
      body_(number * piece_, std::min(count_, (number + 1) * piece_));
    }
    if (ended == 0) return;
    ended_.fetch_add(ended);
    ended_.notify_all();
  }

  void wait() const {
    for (uint64_t ended; (ended = ended_.load()) != pieces_;) ended_.wait(ended);
  }

 private:
  const uint64_t count_, piece_, pieces_;
  const std::function<void(uint64_t, uint64_t)>& body_;
  std::atomic<uint64_t> next_ = 0, ended_ = 0;
};

// Of for_pieces() and its like.
uint64_t piece_of(uint64_t count, uint64_t grain, uint32_t threads) {
  CHECK(grain > 0, "pieces of 0, at least 1 expected");
  return std::max(grain, round_up(ceil_div(count, threads * kPiecesPerThread), grain));
}

}  // namespace

Status validate(const UpdateWorkersOptions& options) {
  auto refuse = [](const std::string& what, const std::string& remedy) {
    return Status(Code::kUsage, "update workers: " + what, remedy);
  };
  constexpr uint32_t kMax = UpdateWorkersOptions::kThreadsMax;
  if (options.threads > kMax || options.cpus.size() > kMax) {
    return refuse(text(std::max<size_t>(options.threads, options.cpus.size()), " threads"),
                  text("at most ", kMax, " threads"));
  }
  if (!options.cpus.empty() && options.numa_node >= 0) {
    return refuse("both cpus and numa_node are given", "give one of them");
  }
  const ProcessorSet allowed = ProcessorSet::allowed();
  for (int cpu : options.cpus) {
    if (!allowed.has(cpu))
      return refuse(text("cpu ", cpu, ": this process may not run there"),
                    "see `taskset -p $$` for the processors it may use");
  }
  if (options.numa_node >= 0 && static_cast<size_t>(options.numa_node) >= tbb::info::numa_nodes().size()) {
    return refuse(text("NUMA node ", options.numa_node, " does not exist"),
                  text("0 to ", tbb::info::numa_nodes().size() - 1));
  }
  return Status();
}

struct UpdateWorkers::Impl {
  const UpdateWorkersOptions options;
  const uint32_t threads;
  Scheduler scheduler;
  // Without it oneTBB has one worker fewer than the machine has processors, for all arenas together.
  const tbb::global_control workers_allowed{tbb::global_control::max_allowed_parallelism,
                                            UpdateWorkersOptions::kThreadsMax + 1};
  // No slot is reserved for callers: only oneTBB's workers work here, and at most `threads` of them.
  tbb::task_arena arena;
  std::optional<WorkerPinning> pinning;

  std::mutex mutex;
  std::condition_variable all_ended;
  uint64_t jobs = 0;  // GUARDED_BY(mutex)

  // The arena whose piece the calling thread is in.
  static thread_local const Impl* current;

  explicit Impl(const UpdateWorkersOptions& o)
      : options(o),
        threads(threads_wanted(o)),
        arena(tbb::task_arena::constraints(numa_id(o), static_cast<int>(threads)), /*reserved_for_masters=*/0) {
    arena.initialize();
    if (!options.cpus.empty()) pinning.emplace(arena, options.cpus);
  }

  static Result<std::unique_ptr<Impl>> make(const UpdateWorkersOptions& options) {
    PENSTOCK_TRY(validate(options));
    PENSTOCK_TRY(check_threads_can_start(threads_wanted(options)));
    return std::make_unique<Impl>(options);
  }

  ~Impl() {
    std::unique_lock lock(mutex);
    all_ended.wait(lock, [this] { return jobs == 0; });
  }

  // Calls body(0) to body(pieces - 1) on the workers, the calling one among them. Isolated: while it waits for the last
  // piece, the caller takes up nothing else, which might need what the caller holds.
  template <class Body>
  void run_pieces(uint64_t pieces, const Body& body) const {
    const auto piece = [&](uint64_t number) {
      task_order::at_begin();
      const Impl* const outer = std::exchange(current, this);
      body(number);
      current = outer;
      task_order::at_end();
    };
    if (pieces == 1) return piece(0);
    task_order::before_create();
    const task_order::Handle handle{&piece};
    tbb::this_task_arena::isolate([&] { tbb::parallel_for(uint64_t{0}, pieces, handle, tbb::simple_partitioner()); });
    task_order::after_wait();
  }

  template <class Job>
  struct Enqueued {
    Impl& impl;
    Job job;

    void operator()() {
      task_order::at_begin();
      Impl& of = impl;
      job();
      delete this;
      std::lock_guard lock(of.mutex);
      if (--of.jobs == 0) of.all_ended.notify_all();
    }
  };

  // Runs `job` on a worker, and destroys it there before it counts as ended.
  template <class Job>
  void enqueue(Job job) {
    {
      std::lock_guard lock(mutex);
      ++jobs;
    }
    task_order::Handle handle{new Enqueued<Job>{*this, std::move(job)}};
    task_order::before_create();
    arena.enqueue(handle);
  }

  template <class Body>
  void run_and_wait(uint64_t pieces, const Body& body) {
    if (current == this) return run_pieces(pieces, body);
    // Shared, because the worker may still be in release() when the caller has gone on.
    auto over = std::make_shared<std::binary_semaphore>(0);
    enqueue([this, pieces, &body, over] {
      run_pieces(pieces, body);
      over->release();
    });
    over->acquire();
  }
};

thread_local const UpdateWorkers::Impl* UpdateWorkers::Impl::current = nullptr;

Result<std::unique_ptr<UpdateWorkers>> UpdateWorkers::make(const UpdateWorkersOptions& options) {
  PENSTOCK_TRY_ASSIGN(impl, Impl::make(options));
  return std::unique_ptr<UpdateWorkers>(new UpdateWorkers(std::move(impl)));
}

UpdateWorkers::UpdateWorkers(const UpdateWorkersOptions& options)
    : UpdateWorkers(std::move(Impl::make(options)).value()) {}

UpdateWorkers::UpdateWorkers(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UpdateWorkers::~UpdateWorkers() = default;

TileReport UpdateWorkers::run(const TileJob& job) {
  TileTask tile(job);
  const auto run_piece = [&](uint64_t piece) { tile.run_piece(piece); };
  if (tile.pieces() == 1 || job.tile.elements < impl_->options.inline_elements) {
    for (uint64_t piece = 0; piece < tile.pieces(); ++piece) run_piece(piece);
  } else {
    impl_->run_and_wait(tile.pieces(), run_piece);
  }
  return tile.report;
}

void UpdateWorkers::enqueue(TileJob job, Done done) {
  impl_->enqueue([impl = impl_.get(), tile = std::make_unique<TileTask>(std::move(job), std::move(done))] {
    impl->run_pieces(tile->pieces(), [&](uint64_t piece) { tile->run_piece(piece); });
    tile->done(tile->report);
  });
}

void UpdateWorkers::for_pieces(uint64_t count, uint64_t grain,
                               const std::function<void(uint64_t begin, uint64_t end)>& body) {
  const uint64_t piece = piece_of(count, grain, impl_->threads);
  if (count <= grain) {
    if (count != 0) body(0, count);
    return;
  }
  impl_->run_and_wait(ceil_div(count, piece),
                      [&](uint64_t number) { body(number * piece, std::min(count, (number + 1) * piece)); });
}

void UpdateWorkers::share_pieces(uint64_t count, uint64_t grain,
                                 const std::function<void(uint64_t begin, uint64_t end)>& body) {
  const auto shared = std::make_shared<SharedPieces>(count, piece_of(count, grain, impl_->threads), body);
  for (uint64_t helper = 1; helper < shared->pieces() && helper <= impl_->threads; ++helper) {
    impl_->enqueue([shared] { shared->work(); });
  }
  shared->work();
  shared->wait();
}

void UpdateWorkers::enqueue_pieces(uint64_t count, uint64_t grain,
                                   std::function<void(uint64_t begin, uint64_t end)> body, std::function<void()> done) {
  const uint64_t piece = piece_of(count, grain, impl_->threads);
  impl_->enqueue([impl = impl_.get(), count, piece, work = std::move(body), then = std::move(done)] {
    impl->run_pieces(ceil_div(count, piece),
                     [&](uint64_t number) { work(number * piece, std::min(count, (number + 1) * piece)); });
    then();
  });
}

uint32_t UpdateWorkers::threads() const { return impl_->threads; }

}  // namespace penstock::cpu_optim
