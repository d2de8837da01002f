// DriveFolder is the folder of a store on one drive. Files of fixed size are created, opened and removed in it.
// DirectFolder is the implementation on real drives.
#pragma once

#include <memory>
#include <string>

#include "tiering/io_engine.h"
#include "tiering/status.h"

namespace penstock::aio {

struct FreeSpace {
  uint64_t file_system = 0;  // folders on the same file system share its free space
  uint64_t bytes = 0;
};

class DriveFolder {
 public:
  virtual ~DriveFolder() = default;

  // For messages.
  virtual const std::string& path() const = 0;
  virtual bool has_file(const std::string& name) const = 0;
  virtual Result<FreeSpace> free_space() const = 0;

  // Creates a file of `size_bytes`, allocates all of it, and locks it. Refuses if the file exists.
  virtual Result<std::unique_ptr<File>> create_file(const std::string& name, uint64_t size_bytes) = 0;
  // Opens and locks it. Waits some seconds for another owner to release the lock.
  virtual Result<std::unique_ptr<File>> open_file(const std::string& name) = 0;
  // Refuses if there is one of the new name. Survives a crash once it has returned.
  virtual Status rename_file(const std::string& from, const std::string& to) = 0;
  // A file that does not exist is not an error. The lock is not checked.
  virtual Status remove_file(const std::string& name) = 0;
};

}  // namespace penstock::aio
