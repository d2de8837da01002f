// DirectFolder is a store's folder on a real drive; its files are DirectFiles.
#pragma once

#include "aio/direct_file.h"
#include "aio/drive_folder.h"

namespace penstock::aio {

class DirectFolder final : public DriveFolder {
 public:
  // With read_only its files are shared with other readers, and may lie on a read-only file system.
  explicit DirectFolder(std::string path, Access access = Access::read_write, FileOptions options = {})
      : path_(std::move(path)), access_(access), options_(options) {}

  const std::string& path() const override { return path_; }
  bool has_file(const std::string& name) const override;
  Result<FreeSpace> free_space() const override;
  Result<std::unique_ptr<File>> create_file(const std::string& name, uint64_t size_bytes) override;
  Result<std::unique_ptr<File>> open_file(const std::string& name) override;
  Status rename_file(const std::string& from, const std::string& to) override;
  Status remove_file(const std::string& name) override;

 private:
  std::string full_path(const std::string& name) const { return path_ + "/" + name; }

  const std::string path_;
  const Access access_;
  const FileOptions options_;
};

// The folders of `--store PATH[,PATH...]`.
std::vector<std::shared_ptr<DriveFolder>> direct_folders(const std::vector<std::string>& paths,
                                                         Access access = Access::read_write);

}  // namespace penstock::aio
