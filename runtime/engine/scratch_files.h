// ScratchFiles: one file on each drive for what no step needs after the run. They replace those that a killed run of
// the same rank has left, and are removed at the end. They have no checksums: what is written there is read back by the
// same process within the same step, and the drive is trusted for that long.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/store/tile_store.h"

namespace penstock::engine {

class ScratchFiles {
 public:
  // Named "rank<rank>.<what>.scratch". `bytes`: by drive; of 0 no file is made.
  static Result<std::unique_ptr<ScratchFiles>> make(aio::DriveFolders folders, uint32_t rank, const char* what,
                                                    const std::vector<uint64_t>& bytes);
  ~ScratchFiles();

  // By drive; null where none was made.
  const std::vector<const File*>& files() const { return views_; }

 private:
  ScratchFiles(aio::DriveFolders folders, std::string name);

  const std::string name_;  // of the file in each folder
  const std::vector<std::shared_ptr<aio::DriveFolder>> folders_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<const File*> views_;
};

}  // namespace penstock::engine
