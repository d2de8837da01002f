#include "cpu_optim/update_arena.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <semaphore>

#include "tiering/check.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
// oneTBB comes without the sanitizer's instrumentation: its own task objects seem to race. Nothing else is excused,
// since only the innermost function counts, and of the C library's functions only those that oneTBB itself calls.
extern "C" __attribute__((visibility("default"), weak)) const char* __tsan_default_suppressions() {
  return "race_top:tbb::detail\nrace_top:enqueue_task\nrace_top:delete_object\nrace_top:new_object\n"
         "called_from_lib:libtbb.so\n";
}
#endif
#if defined(__SANITIZE_ADDRESS__)
// A worker of oneTBB's may outlive the process's main function, and with it what it knows of an observer.
extern "C" __attribute__((visibility("default"), weak)) const char* __lsan_default_suppressions() {
  return "leak:tbb::detail::r1::observe\n";
}
#endif

namespace penstock::cpu_optim {
namespace {

// What a worker takes at once: 64 Ki elements last some 50 us, handing them out costs a thousandth of that.
constexpr uint64_t kPieceElements = kBlockElements;
// Pieces per thread in for_pieces(): enough that a worker who was preempted does not hold up the rest for long.
constexpr uint64_t kPiecesPerThread = 8;

cpu_set_t processors_allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CHECK(sched_getaffinity(0, sizeof(set), &set) == 0, "sched_getaffinity refuses");
  return set;
}

// What the sanitizer cannot see either: that oneTBB's workers come after what was done before they were called.
void hand_over([[maybe_unused]] void* object) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(object);
#endif
}
void take_over([[maybe_unused]] void* object) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(object);
#endif
}

uint32_t threads_wanted(const UpdateArenaOptions& options) {
  if (options.threads != 0) return options.threads;
  if (!options.cpus.empty()) return static_cast<uint32_t>(options.cpus.size());
  const cpu_set_t set = processors_allowed();
  return static_cast<uint32_t>(CPU_COUNT(&set));
}

tbb::task_arena::constraints constraints_of(const UpdateArenaOptions& options, uint32_t threads) {
  tbb::task_arena::constraints constraints;
  constraints.set_max_concurrency(static_cast<int>(threads));
  if (options.numa_node >= 0) {
    const auto nodes = tbb::info::numa_nodes();
    CHECK(static_cast<size_t>(options.numa_node) < nodes.size(), "NUMA node ", options.numa_node, " of ", nodes.size());
    constraints.set_numa_id(nodes[static_cast<size_t>(options.numa_node)]);
  }
  return constraints;
}

// Pins workers as they come, and gives them back as they were: oneTBB may lend them to another arena.
class Pinning : public tbb::task_scheduler_observer {
 public:
  Pinning(tbb::task_arena& arena, const std::vector<int>& cpus)
      : task_scheduler_observer(arena), cpus_(cpus), before_(processors_allowed()) {
    hand_over(this);
    if (!cpus_.empty()) observe(true);
  }
  ~Pinning() override {
    observe(false);
    take_over(this);
  }

  void on_scheduler_entry(bool) override {
    take_over(this);
    const int worker = tbb::this_task_arena::current_thread_index();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus_[static_cast<size_t>(worker) % cpus_.size()], &one);
    sched_setaffinity(0, sizeof(one), &one);  // a processor that is gone leaves the worker unpinned
    hand_over(this);
  }
  void on_scheduler_exit(bool) override {
    sched_setaffinity(0, sizeof(before_), &before_);
    hand_over(this);
  }

 private:
  const std::vector<int> cpus_;
  const cpu_set_t before_;
};

// Pieces that workers take one after another; whoever ends the last one says so.
struct Work {
  uint64_t pieces = 0;
  std::function<void(uint64_t piece)> run_piece;
  std::function<void()> finished;
  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> ended{0};

  void help() {
    for (uint64_t piece = next++; piece < pieces; piece = next++) {
      run_piece(piece);
      if (++ended == pieces) finished();
    }
  }
};

// One enqueued tile: its report grows as pieces end.
struct TileWork {
  TileJob job;
  UpdateArena::Done done;
  std::mutex mutex;
  TileReport report;  // GUARDED_BY(mutex)

  void run_piece(uint64_t piece);
};

PlaneView advanced(PlaneView view, const Plane& plane, uint64_t elements) {
  if (view.source != nullptr) view.source += plane.bytes(elements);
  if (view.target != nullptr) view.target += plane.bytes(elements);
  return view;
}

template <class T>
std::span<T> from(std::span<T> entries, uint64_t first) {
  return entries.empty() ? entries : entries.subspan(first);
}

void TileWork::run_piece(uint64_t piece) {
  const uint64_t first = piece * kPieceElements;
  const std::span<const Plane> planes = job.updater->planes();
  TileView tile = job.tile;
  tile.weight = advanced(tile.weight, planes[0], first);
  for (size_t i = 1; i < planes.size(); ++i) tile.planes[i - 1] = advanced(tile.planes[i - 1], planes[i], first);
  tile.gradient += first * bytes_of(job.updater->form().gradient);
  tile.elements = std::min(kPieceElements, job.tile.elements - first);
  tile.first_element += first;

  static_assert(kPieceElements == kBlockElements, "a piece has one block's notes");
  const uint64_t first_checksum = piece * planes.size();
  TileNotes notes = job.notes;
  notes.square_sums = from(notes.square_sums, piece);
  notes.source_checksums = from(notes.source_checksums, first_checksum);
  notes.target_checksums = from(notes.target_checksums, first_checksum);
  notes.expected_checksums = from(notes.expected_checksums, first_checksum);
  notes.checksum_seed += first_checksum;

  TileReport mine = job.updater->update(tile, job.numbers, notes);
  if (mine.checksum_mismatch != TileReport::kNone) mine.checksum_mismatch += first_checksum;
  std::lock_guard lock(mutex);
  report.gradient_finite = report.gradient_finite && mine.gradient_finite;
  report.checksum_mismatch = std::min(report.checksum_mismatch, mine.checksum_mismatch);
}

}  // namespace

struct UpdateArena::Impl {
  const UpdateArenaOptions options;
  const uint32_t threads;
  // oneTBB counts the caller as one of its threads by default; ours all are workers.
  tbb::global_control all_are_workers;
  tbb::task_arena arena;
  Pinning pinning;

  std::mutex mutex;
  std::condition_variable idle;
  // GUARDED_BY(mutex). Each task that oneTBB holds takes one entry, so that what is handed over goes through this
  // mutex.
  std::deque<std::shared_ptr<Work>> waiting;
  uint64_t helpers = 0;  // GUARDED_BY(mutex): tasks that oneTBB holds or runs

  explicit Impl(const UpdateArenaOptions& o)
      : options(o),
        threads(threads_wanted(o)),
        all_are_workers(tbb::global_control::max_allowed_parallelism, threads + 1),
        arena(constraints_of(o, threads), /*reserved_for_masters=*/0),
        pinning(arena, o.cpus) {}

  ~Impl() {
    std::unique_lock lock(mutex);
    idle.wait(lock, [&] { return helpers == 0; });
  }

  void start(std::shared_ptr<Work> work) {
    const uint64_t tasks = std::min<uint64_t>(threads, work->pieces);
    {
      std::lock_guard lock(mutex);
      helpers += tasks;
      waiting.insert(waiting.end(), tasks, work);
    }
    hand_over(this);
    for (uint64_t i = 0; i < tasks; ++i) arena.enqueue(Helper{this});
  }

  // What oneTBB holds. It is read before take_over() can tell the sanitizer that it was handed over.
  struct Helper {
    Impl* arena;
    __attribute__((no_sanitize("thread"))) void operator()() const { arena->help(); }
  };

  void help() {
    take_over(this);
    std::unique_lock lock(mutex);
    std::shared_ptr<Work> work = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    work->help();
    work.reset();
    lock.lock();
    if (--helpers == 0) idle.notify_all();
  }

  void start_and_wait(uint64_t pieces, std::function<void(uint64_t)> run_piece) {
    std::binary_semaphore over(0);
    auto work = std::make_shared<Work>();
    work->pieces = pieces;
    work->run_piece = std::move(run_piece);
    work->finished = [&over] { over.release(); };
    start(std::move(work));
    over.acquire();
  }
};

UpdateArena::UpdateArena(const UpdateArenaOptions& options) : impl_(std::make_unique<Impl>(options)) {
  CHECK(options.cpus.empty() || options.numa_node < 0, "workers are pinned by cpus or by numa_node, not both");
}

UpdateArena::~UpdateArena() = default;

TileReport UpdateArena::run(const TileJob& job) {
  if (job.tile.elements == 0 || job.tile.elements < impl_->options.inline_elements) {
    return job.updater->update(job.tile, job.numbers, job.notes);
  }
  TileWork tile;
  tile.job = job;
  impl_->start_and_wait(ceil_div(job.tile.elements, kPieceElements), [&](uint64_t piece) { tile.run_piece(piece); });
  return tile.report;
}

void UpdateArena::enqueue(TileJob job, Done done) {
  auto tile = std::make_shared<TileWork>();
  tile->job = std::move(job);
  tile->done = std::move(done);
  auto work = std::make_shared<Work>();
  // A tile of no elements has one piece too, so that done() is called on a worker whatever the tile.
  work->pieces = std::max<uint64_t>(1, ceil_div(tile->job.tile.elements, kPieceElements));
  work->run_piece = [tile](uint64_t piece) { tile->run_piece(piece); };
  work->finished = [tile] { tile->done(tile->report); };
  impl_->start(std::move(work));
}

void UpdateArena::for_pieces(uint64_t count, uint64_t grain,
                             const std::function<void(uint64_t begin, uint64_t end)>& body) {
  CHECK(grain > 0, "pieces of nothing");
  const uint64_t piece = std::max(grain, round_up(ceil_div(count, impl_->threads * kPiecesPerThread), grain));
  if (count <= grain) {
    if (count != 0) body(0, count);
    return;
  }
  impl_->start_and_wait(ceil_div(count, piece),
                        [&](uint64_t number) { body(number * piece, std::min(count, (number + 1) * piece)); });
}

uint32_t UpdateArena::threads() const { return impl_->threads; }

}  // namespace penstock::cpu_optim
