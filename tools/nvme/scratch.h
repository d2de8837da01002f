// ScratchFolder is a folder that only this process measures: it holds the folder's lock, removes what a killed run left
// there, and makes scratch files that it removes at its end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/direct_file.h"
#include "aio/drive_info.h"
#include "tiering/status.h"
#include "tiering/tier.h"
#include "tools/system/interrupt.h"

namespace penstock::tools {

// A folder on a drive that direct I/O can be measured on. Refuses what is missing or no folder (usage), in memory,
// read-only or not ours (environment).
Result<aio::DriveInfo> examine_folder(const std::string& path);

// Refuses folders of which two are one.
Status refuse_repeated_folders(const std::string& what, const std::vector<std::string>& folders);

class ScratchFolder {
 public:
  // Refuses, besides, a folder that another run is measuring.
  static Result<std::unique_ptr<ScratchFolder>> open(const std::string& path);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Makes the scratch file, of a multiple of kUnitBytes. Without a size (0) it takes `wanted_bytes`, or half of what is
  // free if that is less. Refuses when there is no space, with needed and available.
  static constexpr uint64_t kUnitBytes = 4 * kMiB;
  Status make_file(uint64_t size_bytes, uint64_t wanted_bytes);

  const std::string& path() const { return path_; }
  const aio::DriveInfo& drive() const { return drive_; }
  // REQUIRES: make_file() went well.
  const aio::DirectFile& file() const { return *file_; }

 private:
  ScratchFolder(std::string path, aio::DriveInfo drive, int folder)
      : path_(std::move(path)), drive_(std::move(drive)), folder_(folder) {}
  void remove_leftovers() const;

  const std::string path_;
  const aio::DriveInfo drive_;
  const int folder_;  // its descriptor carries the lock
  std::unique_ptr<RemovedAtExit> removed_;
  std::unique_ptr<aio::DirectFile> file_;
};

}  // namespace penstock::tools
