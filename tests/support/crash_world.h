// CrashWorld: a store on recorded drives and the StoreTrainer that uses it, so that the power can fail at any moment of
// any of their lives.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/queued_io_engine.h"
#include "tests/support/recorded_drives.h"
#include "tests/support/store_trainer.h"

namespace penstock::aio {

struct CrashSetting {
  uint32_t drives = 3;
  uint32_t slots = 2;
  uint64_t every = 1;
  WeightPlacement weights = kDefaultWeightPlacement;
};

class CrashWorld {
 public:
  // `plain` has the state after every step that may be reached.
  CrashWorld(const StoreShape& shape, const std::vector<PlainTraining>& plain, CrashSetting setting);

  // A life that makes the store; one that opens it and runs steps, settling at the end. Both end early if the process
  // is killed after `requests`; completions are late and out of order by `seed`. Empty, or what went wrong that no
  // death explains.
  std::string create(uint64_t seed, uint64_t requests);
  std::string live(uint64_t steps, uint64_t seed, uint64_t requests);

  size_t events() const { return drives_.events(); }
  // What was promised by then.
  uint64_t acknowledged(size_t events) const { return drives_.acknowledged(events); }

  // Opens what is there: empty, if that is a committed step not older than the last acknowledged and two more steps
  // are bit-equal; or what is wrong.
  std::string check(uint64_t acknowledged);

  // A world of the same drives as they are after a crash.
  CrashWorld after(const Crash& crash) const { return CrashWorld(shape_, plain_, setting_, drives_.after(crash)); }

 private:
  CrashWorld(const StoreShape& shape, const std::vector<PlainTraining>& plain, CrashSetting setting,
             RecordedDrives drives)
      : shape_(shape), plain_(plain), setting_(setting), drives_(std::move(drives)) {}
  std::string compare(StoreTrainer& trainer, uint64_t step) const;

  const StoreShape& shape_;
  const std::vector<PlainTraining>& plain_;
  const CrashSetting setting_;
  RecordedDrives drives_;
};

}  // namespace penstock::aio
