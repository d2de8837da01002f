// TileTask is a tile whose update is under way on several workers: cut into pieces, each the work of one of them.
#pragma once

#include <algorithm>
#include <mutex>

#include "cpu_optim/update_workers.h"

namespace penstock::cpu_optim {

// The report grows as pieces end.
struct TileTask {
  // What a worker takes at once: 64 Ki elements last about 40 us, and oneTBB hands them out in less than 0.1 us.
  static constexpr uint64_t kPieceElements = kBlockElements;

  explicit TileTask(TileJob j, UpdateWorkers::Done d = {}) : job(std::move(j)), done(std::move(d)) {}

  TileJob job;
  UpdateWorkers::Done done;
  std::mutex mutex;
  TileReport report;  // GUARDED_BY(mutex)

  // A tile of no elements has one too: it has a report.
  uint64_t pieces() const { return std::max<uint64_t>(1, ceil_div(job.tile.elements, kPieceElements)); }
  void run_piece(uint64_t piece);
};

}  // namespace penstock::cpu_optim
