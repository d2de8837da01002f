#include "tools/nvme/update_rate.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cpu_optim/update_arena.h"
#include "tiering/buffer.h"
#include "tools/nvme/statistics.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kElements = kBlockElements * 8;
constexpr int kRounds = 5;

}  // namespace

Result<double> measure_update_gbps(const StateForm& form, uint32_t threads, uint64_t memory_bytes) {
  PENSTOCK_TRY_ASSIGN(arena, cpu_optim::UpdateArena::make({.threads = threads, .cpus = {}}));
  TileLayout layout(form, kElements);
  const uint64_t weight_bytes = kElements * bytes_of(form.weight), gradient_bytes = kElements * bytes_of(form.gradient);
  const uint64_t tile_bytes = layout.size_bytes + weight_bytes + gradient_bytes;
  const uint64_t tiles = std::max<uint64_t>(1, std::min(memory_bytes, kUpdateMemoryBytes) / tile_bytes);
  Buffer state = Buffer::on_heap(tiles * layout.size_bytes), weights = Buffer::on_heap(tiles * weight_bytes),
         gradients = Buffer::on_heap(tiles * gradient_bytes);
  for (const Buffer* buffer : {&state, &weights, &gradients}) std::memset(buffer->data(), 0, buffer->size_bytes());
  cpu_optim::TileUpdater updater(form);
  NumbersRun whole;
  whole.numbers.coefficients = make_coefficients(form.optimizer, Hyper(), 1);
  std::vector<uint64_t> written(updater.checksum_count(kElements)), expected = written;
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    auto begin = std::chrono::steady_clock::now();
    for (uint64_t tile = 0; tile < tiles; ++tile) {
      cpu_optim::TileJob job;
      job.updater = &updater;
      job.numbers = {&whole, 1};
      job.tile = cpu_optim::TileView::in_place(layout, state.data() + tile * layout.size_bytes,
                                               weights.data() + tile * weight_bytes,
                                               gradients.data() + tile * gradient_bytes, kElements, 0);
      job.notes.target_checksums = written;
      job.notes.expected_checksums = expected;
      arena->run(job);
    }
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  seconds.erase(seconds.begin());  // the first touches memory
  uint64_t bytes = tiles * (2 * (layout.size_bytes + weight_bytes) + gradient_bytes);
  return static_cast<double>(bytes) / median(seconds) / 1e9;
}

}  // namespace penstock::tools
