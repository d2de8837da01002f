// What courses of training compute on, if not in place: a device, and streams of a trainer on it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "tests/support/training_world.h"

namespace penstock::engine {

// A trainer's stream; ends when what is on it has.
class TrainerStream {
 public:
  virtual ~TrainerStream() = default;
  virtual WorkStream work() = 0;
};

struct CourseDevice {
  std::function<Result<std::unique_ptr<Device>>(uint64_t seed, uint64_t arena_bytes)> open;
  // None: the trainer's work does not reach the device's memory (see EngineByCopies).
  std::function<std::unique_ptr<TrainerStream>(uint64_t seed)> make_stream;
};

// A host device whose copies and streams take their time, each piece of a stream's work at least this long; a program
// that is linked with another device has that.
CourseDevice course_device(std::chrono::microseconds least_computing = {});

// Lets the world's engine plan for the device, and its trainer compute there; `seed`: of what it draws of delays.
inline void compute_on(const CourseDevice& device, uint64_t seed, uint32_t streams, TrainingWorld& world,
                       std::vector<std::unique_ptr<TrainerStream>>& made) {
  MachineProfile& machine = world.options.request.machine;
  machine.devices = 1;
  machine.host_to_device_gbps = machine.device_to_host_gbps = 25;
  world.options.request.budgets.device_bytes = 64 * kMiB;
  world.options.device = [open = device.open, seed](uint64_t arena_bytes) { return open(seed, arena_bytes); };
  if (!device.make_stream) return;
  for (uint32_t stream = 0; stream < streams; ++stream) made.push_back(device.make_stream(seed + stream));
  world.computing = made.front()->work();
  if (streams > 1) world.giving = made.back()->work();
}

}  // namespace penstock::engine
