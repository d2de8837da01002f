#include "tests/support/memory_folder.h"

#include <cerrno>

namespace penstock::aio {

Result<std::unique_ptr<File>> MemoryFolder::create_file(const std::string& name, uint64_t size_bytes) {
  if (has_file(name)) return errno_status(path_ + "/" + name, EEXIST);
  if (size_bytes > free_bytes_) return errno_status(path_ + "/" + name, ENOSPC);
  files_[name] = std::make_shared<MemoryFile::Bytes>(size_bytes);
  return open_file(name);
}

Result<std::unique_ptr<File>> MemoryFolder::open_file(const std::string& name) {
  auto found = files_.find(name);
  if (found == files_.end()) return errno_status(path_ + "/" + name, ENOENT);
  auto file = std::make_unique<MemoryFile>(path_ + "/" + name, found->second, drive_);
  opened_[file.get()] = name;
  return std::unique_ptr<File>(std::move(file));
}

Status MemoryFolder::rename_file(const std::string& from, const std::string& to) {
  if (has_file(to)) return errno_status(path_ + "/" + to, EEXIST);
  files_[to] = std::move(files_.extract(from).mapped());
  for (auto& [file, name] : opened_) {
    if (name == from) name = to;
  }
  return Status();
}

Status MemoryFolder::remove_file(const std::string& name) {
  files_.erase(name);
  return Status();
}

}  // namespace penstock::aio
