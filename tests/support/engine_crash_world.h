// EngineCrashWorld: the engine on recorded drives, through any number of its lives, and the plain loop's state after
// every step that they may reach.
#pragma once

#include <string>
#include <vector>

#include "tests/support/course_device.h"
#include "tests/support/recorded_drives.h"
#include "tests/support/training_world.h"

namespace penstock::engine {

struct EngineCrashSetting {
  const char* name;
  uint32_t drives = 3;
  uint32_t slots = 0;  // 0: what the durability needs
  uint32_t window_tiles = 4;
  double host_state_share = 0;
  WeightTier weights = WeightTier::nvme;
  double retained_share = 0.5;
  Durability durability = {};
  bool some_absent = false;  // some units get no gradient in some steps
  bool trains = false;       // whole steps, whose activations go to the drives and come back
  bool on_device = false;    // those of a device, else in place

  friend std::ostream& operator<<(std::ostream& out, const EngineCrashSetting& setting) { return out << setting.name; }
};

// Where the trainer is in a whole step: in one of its passes, or behind them, when the last updates are still written.
enum class Moment { forward, backward, tail };

class EngineCrashWorld {
 public:
  static constexpr uint64_t kStepsMax = 64;

  // The store is made, and its making is not recorded.
  explicit EngineCrashWorld(const EngineCrashSetting& setting);

  // The drives as they are when the store has just been made.
  aio::RecordedDrives new_drives() const;

  // A life that opens the store and runs steps, settling at the end and before some of them; it ends early if the
  // process is killed after `requests`. Empty, or what went wrong that no death explains.
  std::string live(aio::RecordedDrives& drives, uint64_t steps, uint64_t seed, uint64_t requests);
  // A life of two steps, the second of which ends before the first tile of the first has been written.
  std::string live_two_steps_at_once(aio::RecordedDrives& drives);
  // A life on any backend; told of what was promised.
  using MakeBackend = std::function<std::unique_ptr<aio::IoBackend>()>;
  Status run(const aio::RecordedDrives& drives, uint64_t steps, uint64_t seed, const MakeBackend& make_backend,
             const std::function<void(uint64_t step)>& on_promised);

  // Of whole steps: told whenever the trainer gets there.
  std::function<void(Moment)> at = [](Moment) {};
  // Told of a step that has failed, in a life on any backend.
  std::function<void(Engine&, const Status&)> on_failed = [](Engine&, const Status&) {};
  Status begin(Engine& engine) const { return engine.begin({.groups = world_.groups}); }

  // Opens what is there: empty, if that is a committed step not older than `acknowledged` and two more steps are
  // bit-equal; or what is wrong.
  std::string check(const aio::RecordedDrives& drives, uint64_t acknowledged);

 private:
  Result<std::unique_ptr<Engine>> open(const aio::RecordedDrives& drives, const MakeBackend& make_backend);
  Result<StepReport> run_step(Engine& engine);
  std::string compare(Engine& engine, const std::string& when);

  void end_computing() const;

  TrainingWorld world_;
  const bool trains_;
  std::vector<std::unique_ptr<TrainerStream>> streams_;
  std::vector<PlainModel> plain_;  // by step
};

}  // namespace penstock::engine
