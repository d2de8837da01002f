// DriveFolder is one drive's folder of a store, as the store needs it: a place where one file of fixed size is made,
// opened and removed. DirectFolder is the real one.
#pragma once

#include <memory>
#include <string>

#include "tiering/io_engine.h"
#include "tiering/status.h"

namespace penstock::aio {

struct FreeSpace {
  uint64_t file_system = 0;  // folders on one share what is free
  uint64_t bytes = 0;
};

class DriveFolder {
 public:
  virtual ~DriveFolder() = default;

  // For messages.
  virtual const std::string& path() const = 0;
  virtual bool has_file(const std::string& name) const = 0;
  virtual Result<FreeSpace> free_space() const = 0;

  // Makes a file of `size_bytes`, every byte preallocated, and locks it. Refuses one that exists.
  virtual Result<std::unique_ptr<File>> create_file(const std::string& name, uint64_t size_bytes) = 0;
  // Opens and locks it; waits for another owner's lock for a while.
  virtual Result<std::unique_ptr<File>> open_file(const std::string& name) = 0;
  // Removing what is not there is no error. Whether another owner has it locked is not asked.
  virtual Status remove_file(const std::string& name) = 0;
};

}  // namespace penstock::aio
