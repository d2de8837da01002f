// CrashWorld: a store on drives in memory whose every request is recorded, through any number of lives of the process
// that uses it, so that the power can fail at any moment of any of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/crash_image.h"
#include "aio/engine.h"
#include "tests/support/memory_folder.h"
#include "tests/support/store_trainer.h"

namespace penstock::aio {

struct CrashSetting {
  uint32_t drives = 3;
  uint32_t slots = 2;
  uint64_t every = 1;
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

  size_t events() const { return log_.size(); }
  // What was promised by then.
  bool created(size_t events) const { return created_at_ != 0 && created_at_ <= events; }
  uint64_t acknowledged(size_t events) const;

  // Opens what is there: empty, if that is a committed step not older than the last acknowledged and two more steps
  // are bit-equal; or what is wrong.
  std::string check(uint64_t acknowledged);

  // A world of the same drives as they are after a crash.
  CrashWorld after(const Crash& crash) const;

 private:
  std::vector<std::shared_ptr<DriveFolder>> given() const { return {folders_.begin(), folders_.end()}; }
  std::unique_ptr<Engine> make_engine(uint64_t seed, uint64_t requests);
  // The log outlives the files of one life: its events are made to point to files that last.
  void keep_log();
  std::string compare(StoreTrainer& trainer, uint64_t step) const;

  const StoreShape& shape_;
  const std::vector<PlainTraining>& plain_;
  const CrashSetting setting_;
  std::vector<std::shared_ptr<MemoryFolder>> folders_;
  std::vector<std::shared_ptr<MemoryFile>> drives_;  // stand for the folders' files in the log
  std::vector<MemoryFile::Bytes> before_;            // what they held when the log began
  IoLog log_;
  size_t kept_ = 0;
  size_t created_at_ = 0;
  std::vector<std::pair<size_t, uint64_t>> acknowledged_;  // from which event on, which step
};

}  // namespace penstock::aio
