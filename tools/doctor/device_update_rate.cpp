#include "tools/doctor/device_update_rate.h"

#include <algorithm>
#include <thread>

#include "tiering/check.h"

namespace penstock::tools {
namespace {

using Clock = std::chrono::steady_clock;

Result<double> seconds_of(Device& device, const Kernel& kernel) {
  const Clock::time_point begin = Clock::now();
  PENSTOCK_TRY(device.launch(kernel, device.kernel_stream()));
  PENSTOCK_TRY_ASSIGN(done, device.record(device.kernel_stream()));
  for (Result<bool> reached = false;; std::this_thread::yield()) {
    reached = device.reached(done);
    PENSTOCK_TRY(reached.status());
    if (*reached) break;
  }
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Result<double> measure_device_updates(Device& device, int rounds) {
  const std::span<std::byte> memory = device.memory();
  const StateForm form;
  kernel::UpdateTile update;
  update.form = form;
  update.numbers.coefficients = make_coefficients(form.optimizer, Hyper(), 1);
  const uint64_t block_bytes =
      kBlockElements * (bytes_of(form.weight) + bytes_of(form.gradient)) + TileLayout(form, kBlockElements).size_bytes;
  update.elements = memory.size() / block_bytes * kBlockElements;
  CHECK(update.elements > 0, memory.size(), " B of a device hold no block of ", block_bytes);
  const TileLayout layout(form, update.elements);
  update.weight = memory.data();
  update.gradient = update.weight + update.elements * bytes_of(form.weight);
  std::byte* const state = update.weight + update.elements * (bytes_of(form.weight) + bytes_of(form.gradient));
  for (size_t i = 0; i < layout.places.size(); ++i) update.planes[i] = state + layout.places[i].offset_bytes;
  PENSTOCK_TRY(seconds_of(device, kernel::Fill{memory.data(), memory.size(), 0}).status());
  const double slots = static_cast<double>(update.elements * bytes_of(form.weight) + layout.size_bytes);
  const double bytes = 2 * slots + static_cast<double>(update.elements * bytes_of(form.gradient));
  double best_gbps = 0;
  for (int round = 0; round < rounds; ++round) {
    PENSTOCK_TRY_ASSIGN(took_s, seconds_of(device, update));
    best_gbps = std::max(best_gbps, bytes / took_s / 1e9);
  }
  return best_gbps;
}

}  // namespace penstock::tools
