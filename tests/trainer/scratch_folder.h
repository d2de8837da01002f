// A folder that vanishes with the test.
#pragma once

#include <filesystem>
#include <string>

#include "tiering/check.h"

namespace penstock::trainer {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "penstock_trainer_XXXXXX";
    CHECK(::mkdtemp(pattern.data()) != nullptr, "no folder for the test");
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace penstock::trainer
