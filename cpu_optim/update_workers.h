// UpdateWorkers spreads updates over a fixed set of worker threads, each pinned where the options say.
//
// A tile is cut at multiples of kBlockElements, so results do not depend on the number of threads. The arena never has
// more than options.threads threads at work: run() and for_pieces() wait without working, except that what is too small
// to share (a tile below options.inline_elements, a single piece) is done by the caller itself.
//
// The workers are the arena's own from its beginning to its end, and sleep while there is nothing to do. Each occupies
// a slot of a oneTBB arena in which nobody else has one: what a body starts with oneTBB stays on the worker that runs
// the body, several UpdateArenas take nothing from one another, and a trainer that uses oneTBB keeps its workers and
// its limits, which do not bind the arena either. Processors are shared all the same: `threads` and `cpus` say how
// many, and which, the arena may keep busy beside the trainer.
//
// Made and destroyed by one thread, which is none of its workers. All else may be called from any thread: on a worker
// of this arena run() and for_pieces() take part in the work that they wait for, so nesting cannot block. A worker does
// not wait for another arena whose workers wait for its own: nobody would be left to work.
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
  // At most kThreadsMax. 0: one per entry of `cpus`, per processor of `numa_node`, or per one that this process may
  // use.
  uint32_t threads = 0;
  std::vector<int> cpus = {};  // worker i is pinned to cpus[i % size]; empty: not pinned
  int numa_node = -1;          // as oneTBB counts them: workers stay on its processors; -1: any. Not with `cpus`
  uint64_t inline_elements = 64 * 1024;

  static constexpr uint32_t kThreadsMax = 4096;
};

// Refuses more threads than kThreadsMax, a processor that this process may not use, a NUMA node that there is not, and
// pinning by both.
Status validate(const UpdateWorkersOptions& options);

// A tile to update. What it points at must stay until the job is done.
struct TileJob {
  const TileUpdater* updater = nullptr;
  TileView tile;
  std::span<const NumbersRun> numbers;  // of the unit, as update() takes them
  TileNotes notes;
};

class UpdateWorkers {
 public:
  // Called once, on a worker thread; neither it nor a body may throw. It must not block: write an eventfd or push to a
  // queue.
  using Done = std::function<void(const TileReport&)>;

  // Refuses what validate() refuses, and where the system does not grant so many threads.
  static Result<std::unique_ptr<UpdateWorkers>> make(const UpdateWorkersOptions& options = {});
  // REQUIRES: neither is so.
  explicit UpdateWorkers(const UpdateWorkersOptions& options = {});
  // Waits for every job that was enqueued.
  ~UpdateWorkers();
  UpdateWorkers(const UpdateWorkers&) = delete;
  UpdateWorkers& operator=(const UpdateWorkers&) = delete;

  TileReport run(const TileJob& job);
  void enqueue(TileJob job, Done done);

  // Calls `body(begin, end)` for pieces of [0, count) that begin at multiples of `grain`, and waits: on the workers, or
  // on the calling thread where there is but one piece. For the gradient helpers, whose blocks are independent too.
  void for_pieces(uint64_t count, uint64_t grain, const std::function<void(uint64_t begin, uint64_t end)>& body);

  uint32_t threads() const;

 private:
  struct Impl;
  explicit UpdateWorkers(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::cpu_optim
