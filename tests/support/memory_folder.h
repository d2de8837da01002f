// MemoryFolder is a drive's folder in memory: its files outlive being closed, and can be copied, damaged and compared.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aio/drive_folder.h"
#include "tests/support/memory_backend.h"

namespace penstock::aio {

class MemoryFolder final : public DriveFolder {
 public:
  MemoryFolder(std::string path, uint32_t drive) : path_(std::move(path)), drive_(drive), file_system_(drive) {}

  const std::string& path() const override { return path_; }
  bool has_file(const std::string& name) const override { return files_.contains(name); }
  Result<FreeSpace> free_space() const override { return FreeSpace{file_system_, free_bytes_}; }
  Result<std::unique_ptr<File>> create_file(const std::string& name, uint64_t size_bytes) override;
  Result<std::unique_ptr<File>> open_file(const std::string& name) override;
  Status rename_file(const std::string& from, const std::string& to) override;
  Status remove_file(const std::string& name) override;

  // The bytes of a file; more than one drive's folder may be given the same.
  MemoryFile::Bytes& bytes(const std::string& name) { return *files_.at(name); }
  void put(const std::string& name, MemoryFile::Bytes bytes) {
    files_[name] = std::make_shared<MemoryFile::Bytes>(std::move(bytes));
  }
  // Whether `file` is, or was, the file of that name, opened since the last forget_opened().
  bool opened(const std::string& name, const File* file) const {
    auto found = opened_.find(file);
    return found != opened_.end() && found->second == name;
  }
  void forget_opened() { opened_.clear(); }
  void set_free_bytes(uint64_t free_bytes) { free_bytes_ = free_bytes; }
  void share_file_system(const MemoryFolder& other) { file_system_ = other.file_system_; }

 private:
  const std::string path_;
  const uint32_t drive_;
  uint64_t file_system_;
  uint64_t free_bytes_ = uint64_t{1} << 40;
  std::map<std::string, std::shared_ptr<MemoryFile::Bytes>> files_;
  std::map<const File*, std::string> opened_;
};

}  // namespace penstock::aio
