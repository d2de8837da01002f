// UpdateWorkers runs optimizer updates on a oneTBB arena of its own: a fixed number of worker threads, pinned where the
// options say.
//
// A tile is cut at multiples of kBlockElements, so results do not depend on the number of threads. At most
// options.threads threads work at once. Callers of run() and for_pieces() sleep until the work is done; only work that
// is too small to share (a tile below options.inline_elements, a single piece) runs on the calling thread, and its part
// of share_pieces().
//
// The workers belong to oneTBB. They are created when there is work, look for more for some 100 us after it, and then
// sleep or serve the program's other arenas. As long as an UpdateWorkers exists, oneTBB may have up to kThreadsMax
// workers, so several UpdateWorkers and the trainer's own arenas take no threads from one another. A lower limit that
// the trainer sets with tbb::global_control binds everybody; one worker always remains, so jobs still end. What a body
// starts with oneTBB is shared among these workers and runs nowhere else.
//
// Created and destroyed by one thread that is not one of the workers. Everything else may be called from any thread.
// On a worker, run() and for_pieces() of the same UpdateWorkers take part in the work that they wait for, so nesting
// cannot block. A worker must not wait for another UpdateWorkers whose workers wait for this one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cpu_optim/tile_update.h"
#include "tiering/status.h"

namespace penstock::cpu_optim {

struct UpdateWorkersOptions {
  // At most kThreadsMax. 0: one for each entry of `cpus`, each processor of `numa_node`, or each processor that this
  // process may use.
  uint32_t threads = 0;
  std::vector<int> cpus = {};  // worker i is pinned to cpus[i % size]; empty: not pinned
  int numa_node = -1;          // keeps the workers on this node, as oneTBB numbers them; -1: any. Not with `cpus`
  uint64_t inline_elements = 64 * 1024;

  static constexpr uint32_t kThreadsMax = 1024;
};

// Refuses more than kThreadsMax threads, a processor that this process may not use, a NUMA node that does not exist,
// and `cpus` together with `numa_node`.
Status validate(const UpdateWorkersOptions& options);

// A tile to update. What it points at must stay alive until the job is done.
struct TileJob {
  const TileUpdater* updater = nullptr;
  TileView tile;
  std::span<const NumbersRun> numbers;  // of the unit, as update() takes them
  TileNotes notes;
  std::byte* weight_copy = nullptr;  // where the new weight goes besides; none: nowhere
};

class UpdateWorkers {
 public:
  // Called once for each job, on a worker thread. Neither it nor a body may throw or block: write an eventfd or push to
  // a queue. It is destroyed before the job counts as ended.
  using Done = std::function<void(const TileReport&)>;

  // Refuses what validate() refuses. Refuses too when the system does not grant `threads` more threads.
  static Result<std::unique_ptr<UpdateWorkers>> make(const UpdateWorkersOptions& options = {});
  // REQUIRES: make() would not refuse.
  explicit UpdateWorkers(const UpdateWorkersOptions& options = {});
  // Waits for every job that was enqueued.
  ~UpdateWorkers();
  UpdateWorkers(const UpdateWorkers&) = delete;
  UpdateWorkers& operator=(const UpdateWorkers&) = delete;

  TileReport run(const TileJob& job);
  // Returns at once. Jobs start about in the order in which they were enqueued.
  void enqueue(TileJob job, Done done);

  // Calls `body(begin, end)` on the workers for pieces of [0, count) that begin at multiples of `grain`, and waits. A
  // single piece runs on the calling thread. For the gradient helpers, whose blocks are independent too.
  void for_pieces(uint64_t count, uint64_t grain, const std::function<void(uint64_t begin, uint64_t end)>& body);

  // The same, but the calling thread takes part, so that it never takes longer than the caller alone would, however
  // busy the workers are. One thread more than options.threads works then. `body` waits for no workers.
  void share_pieces(uint64_t count, uint64_t grain, const std::function<void(uint64_t begin, uint64_t end)>& body);

  // As for_pieces(), but returns at once, and calls `done` on a worker when every piece has ended: as enqueue() its
  // Done. REQUIRES: count > 0.
  void enqueue_pieces(uint64_t count, uint64_t grain, std::function<void(uint64_t begin, uint64_t end)> body,
                      std::function<void()> done);

  uint32_t threads() const;

 private:
  struct Impl;
  explicit UpdateWorkers(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::cpu_optim
