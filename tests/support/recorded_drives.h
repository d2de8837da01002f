// RecordedDrives: drives in memory whose every request is recorded, through any number of lives of the process that
// uses them, so that the power can fail at any moment of any of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"
#include "tests/support/crash_image.h"
#include "tests/support/memory_folder.h"

namespace penstock::aio {

class RecordedDrives {
 public:
  inline static const std::string kFile = store_file_name(0);
  static constexpr uint64_t kNeverKilled = ~uint64_t{0};

  // `images`: what each drive's store file holds when the log begins. The files are there after put_files() only.
  // `rank`: whose store it is.
  explicit RecordedDrives(std::vector<MemoryFile::Bytes> images, uint32_t rank = 0);
  void put_files();

  std::vector<std::shared_ptr<DriveFolder>> folders() const { return {folders_.begin(), folders_.end()}; }
  // What one life uses: completions are late and out of order by `seed`, and after `requests` the process is killed.
  std::unique_ptr<IoBackend> make_backend(uint64_t seed, uint64_t requests);
  // The same on a backend of the test's.
  std::unique_ptr<IoBackend> recorded(std::unique_ptr<IoBackend> inner);
  // Its engine is gone. The log outlives the files of one life: its events are made to point to files that last.
  void life_ended();

  size_t events() const { return log_.size(); }
  // From here on that step was promised; of making a store, step 0.
  void acknowledge(uint64_t step) { acknowledged_.push_back({log_.size(), step}); }
  uint64_t acknowledged(size_t events) const;

  // The same drives as they are after a crash.
  RecordedDrives after(const Crash& crash) const;

 private:
  uint32_t rank_;
  std::vector<MemoryFile::Bytes> before_;
  std::vector<std::shared_ptr<MemoryFolder>> folders_;
  std::vector<std::shared_ptr<MemoryFile>> drives_;  // stand for the folders' files in the log
  std::shared_ptr<MemoryFile> others_;               // stands for every other file
  IoLog log_;
  size_t kept_ = 0;
  std::vector<std::pair<size_t, uint64_t>> acknowledged_;  // from which event on, which step
};

}  // namespace penstock::aio
