// RunFolder is where a run's log, config and plan lie. One process at a time writes there: it holds a lock on the
// folder itself, by which others also see that the run lives.
#pragma once

#include <string>

#include "tiering/status.h"

namespace penstock::tools {

class RunFolder {
 public:
  // Makes it where missing; of an empty path there is nothing. Refuses a folder that another run writes to.
  static Result<RunFolder> open(const std::string& path);
  RunFolder() = default;
  // A folder that was made and is still empty is removed.
  ~RunFolder();
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;

 private:
  std::string made_;
  int descriptor_ = -1;
};

}  // namespace penstock::tools
