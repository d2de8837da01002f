// UpdateArena spreads updates over a fixed set of worker threads (oneTBB), each pinned where the options say.
//
// A tile is cut at multiples of kBlockElements, so results do not depend on the number of threads. The arena never has
// more than options.threads threads at work, all its own: run() waits without working, except that a tile too small
// to share (below options.inline_elements) is updated by the caller itself.
// Made and destroyed by one thread; run() and enqueue() may be called from any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cpu_optim/tile_update.h"

namespace penstock::cpu_optim {

struct UpdateArenaOptions {
  uint32_t threads = 0;        // 0: one per entry of `cpus`, or per processor that this process may run on
  std::vector<int> cpus = {};  // worker i is pinned to cpus[i % size]; empty: not pinned
  int numa_node = -1;          // as oneTBB counts them; -1: any. Not with `cpus`
  uint64_t inline_elements = 64 * 1024;
};

// A tile to update. What it points at must stay until the job is done.
struct TileJob {
  const TileUpdater* updater = nullptr;
  TileView tile;
  std::span<const NumbersRun> numbers;  // of the unit, as update() takes them
  TileNotes notes;
};

class UpdateArena {
 public:
  // Called once, on a worker thread. It must not block and must not throw: write an eventfd or push to a queue.
  using Done = std::function<void(const TileReport&)>;

  explicit UpdateArena(const UpdateArenaOptions& options = {});
  // Waits for every job that was enqueued.
  ~UpdateArena();
  UpdateArena(const UpdateArena&) = delete;
  UpdateArena& operator=(const UpdateArena&) = delete;

  TileReport run(const TileJob& job);
  void enqueue(TileJob job, Done done);

  // Calls `body(begin, end)` on the workers for pieces of [0, count) that begin at multiples of `grain`, and waits.
  // For the gradient helpers, whose blocks are independent too.
  void for_pieces(uint64_t count, uint64_t grain, const std::function<void(uint64_t begin, uint64_t end)>& body);

  uint32_t threads() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::cpu_optim
