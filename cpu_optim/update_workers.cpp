#include "cpu_optim/update_workers.h"

#include <oneapi/tbb/info.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <semaphore>
#include <system_error>
#include <thread>

#include "cpu_optim/processor_set.h"
#include "tiering/check.h"

namespace penstock::cpu_optim {
namespace {

// What a worker takes at once: 64 Ki elements last some 50 us, handing them out costs a thousandth of that.
constexpr uint64_t kPieceElements = kBlockElements;
// Pieces per thread in for_pieces(): enough that a worker who was preempted does not hold up the rest for long.
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
  CHECK(processors > 0, "sched_getaffinity refuses");
  return std::min(static_cast<uint32_t>(processors), UpdateWorkersOptions::kThreadsMax);
}

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
  UpdateWorkers::Done done;
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

Status validate(const UpdateWorkersOptions& options) {
  auto refuse = [](const std::string& what, const std::string& remedy) {
    return Status(Code::kUsage, "update arena: " + what, remedy);
  };
  constexpr uint32_t kMax = UpdateWorkersOptions::kThreadsMax;
  if (options.threads > kMax || options.cpus.size() > kMax) {
    return refuse(text("threads: ", std::max<size_t>(options.threads, options.cpus.size())), text("at most ", kMax));
  }
  if (!options.cpus.empty() && options.numa_node >= 0) {
    return refuse("workers pinned by cpus and by numa_node", "give one of the two");
  }
  const ProcessorSet allowed = ProcessorSet::allowed();
  for (int cpu : options.cpus) {
    if (!allowed.has(cpu)) return refuse(text("cpu ", cpu), "name processors that this process may run on");
  }
  if (options.numa_node >= 0 && static_cast<size_t>(options.numa_node) >= tbb::info::numa_nodes().size()) {
    return refuse(text("NUMA node ", options.numa_node), text("there are ", tbb::info::numa_nodes().size()));
  }
  return Status();
}

struct UpdateWorkers::Impl {
  const UpdateWorkersOptions options;
  const uint32_t threads;
  // All slots are reserved for threads that enter by themselves, so oneTBB sends none of its own and counts none.
  tbb::task_arena slots;
  std::vector<std::thread> workers;

  std::mutex mutex;
  std::condition_variable wanted;
  // GUARDED_BY(mutex). The first may have no pieces left to take: whoever finds out removes it.
  std::deque<std::shared_ptr<Work>> works;
  bool ending = false;  // GUARDED_BY(mutex)

  explicit Impl(const UpdateWorkersOptions& o)
      : options(o),
        threads(threads_wanted(o)),
        slots(tbb::task_arena::constraints(numa_id(o), static_cast<int>(threads)), /*reserved_for_masters=*/threads) {}

  static Result<std::unique_ptr<Impl>> make(const UpdateWorkersOptions& options) {
    PENSTOCK_TRY(validate(options));
    auto impl = std::make_unique<Impl>(options);
    PENSTOCK_TRY(impl->start_workers());
    return impl;
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      ending = true;
    }
    wanted.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  Status start_workers() {
    workers.reserve(threads);
    try {
      while (workers.size() < threads) workers.emplace_back([this, i = workers.size()] { be_worker(i); });
    } catch (const std::system_error& error) {
      return thread_status(text("start update threads: ", workers.size(), " of ", threads), error.code().value(),
                           threads > 1 ? "ask for fewer threads, or " : "");
    }
    return Status();
  }

  void be_worker(size_t number) {
    // A processor that is gone leaves the worker unpinned.
    if (!options.cpus.empty()) ProcessorSet::of_one(options.cpus[number % options.cpus.size()]).pin_this_thread();
    slots.execute([this] { work_until_the_end(); });
  }

  void work_until_the_end() {
    std::unique_lock lock(mutex);
    while (true) {
      wanted.wait(lock, [&] { return ending || !works.empty(); });
      if (works.empty()) return;
      std::shared_ptr<Work> work = works.front();
      lock.unlock();
      work->help();
      lock.lock();
      if (!works.empty() && works.front() == work) works.pop_front();
    }
  }

  bool is_worker(std::thread::id id) const {
    return std::any_of(workers.begin(), workers.end(),
                       [id](const std::thread& worker) { return worker.get_id() == id; });
  }

  void start(std::shared_ptr<Work> work) {
    const uint64_t helpers = std::min<uint64_t>(threads, work->pieces);
    // Held to the end: once the work is done, whoever learns of it may destroy the arena.
    std::lock_guard lock(mutex);
    works.push_back(std::move(work));
    for (uint64_t i = 0; i < helpers; ++i) wanted.notify_one();
  }

  void start_and_wait(uint64_t pieces, std::function<void(uint64_t)> run_piece) {
    // Shared, because whoever ends the last piece still holds it when the caller has gone on.
    auto over = std::make_shared<std::binary_semaphore>(0);
    auto work = std::make_shared<Work>();
    work->pieces = pieces;
    work->run_piece = std::move(run_piece);
    work->finished = [over] { over->release(); };
    start(work);
    if (is_worker(std::this_thread::get_id())) work->help();
    over->acquire();
  }
};

Result<std::unique_ptr<UpdateWorkers>> UpdateWorkers::make(const UpdateWorkersOptions& options) {
  PENSTOCK_TRY_ASSIGN(impl, Impl::make(options));
  return std::unique_ptr<UpdateWorkers>(new UpdateWorkers(std::move(impl)));
}

UpdateWorkers::UpdateWorkers(const UpdateWorkersOptions& options)
    : UpdateWorkers(std::move(Impl::make(options)).value()) {}

UpdateWorkers::UpdateWorkers(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

UpdateWorkers::~UpdateWorkers() = default;

TileReport UpdateWorkers::run(const TileJob& job) {
  if (job.tile.elements == 0 || job.tile.elements < impl_->options.inline_elements) {
    return job.updater->update(job.tile, job.numbers, job.notes);
  }
  TileWork tile;
  tile.job = job;
  impl_->start_and_wait(ceil_div(job.tile.elements, kPieceElements), [&](uint64_t piece) { tile.run_piece(piece); });
  return tile.report;
}

void UpdateWorkers::enqueue(TileJob job, Done done) {
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

void UpdateWorkers::for_pieces(uint64_t count, uint64_t grain,
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

uint32_t UpdateWorkers::threads() const { return impl_->threads; }

}  // namespace penstock::cpu_optim
