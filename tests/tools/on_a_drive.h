// A folder to measure and the rig that measures it, on the drive that holds the build: a temporary folder may lie in
// memory.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tools/nvme/rig.h"

namespace penstock::tools {

inline Status carry_on(double) { return {}; }

class OnADrive : public testing::Test {
 protected:
  OnADrive() {
    std::string name = (std::filesystem::current_path() / "penstock-nvme-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~OnADrive() override { std::filesystem::remove_all(folder_); }

  void make_rig(uint64_t size_bytes = 16 * kMiB) {
    auto rig = Rig::make({.paths = {folder_}, .size_bytes = size_bytes, .memory_bytes = 4 * kMiB}, carry_on);
    if (!rig.ok()) GTEST_SKIP() << rig.status().message();
    rig_ = std::move(*rig);
  }
  size_t files_left() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::string folder_;
  std::unique_ptr<Rig> rig_;
};

}  // namespace penstock::tools
