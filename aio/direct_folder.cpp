#include "aio/direct_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "aio/file_descriptor.h"

namespace penstock::aio {

bool DirectFolder::has_file(const std::string& name) const {
  std::error_code unknown;  // it cannot be looked at: opening it says why
  return std::filesystem::exists(full_path(name), unknown) || unknown;
}

Result<FreeSpace> DirectFolder::free_space() const {
  struct stat here = {};
  std::error_code error;
  std::filesystem::space_info space = std::filesystem::space(path_, error);
  if (!error && stat(path_.c_str(), &here) != 0) error.assign(errno, std::generic_category());
  if (error) return errno_status(path_, error.value(), "give a folder that exists, on the drive that is meant");
  return FreeSpace{here.st_dev, space.available};
}

Result<std::unique_ptr<File>> DirectFolder::create_file(const std::string& name, uint64_t size_bytes) {
  PENSTOCK_TRY_ASSIGN(file, DirectFile::create(full_path(name), size_bytes, Existing::refuse, options_));
  // From here on the file's own header says that it is incomplete, and its creator removes it.
  file->keep();
  return std::unique_ptr<File>(std::move(file));
}

Result<std::unique_ptr<File>> DirectFolder::open_file(const std::string& name) {
  PENSTOCK_TRY_ASSIGN(file, DirectFile::open(full_path(name), access_, options_));
  return std::unique_ptr<File>(std::move(file));
}

Status DirectFolder::rename_file(const std::string& from, const std::string& to) {
  const std::string what = "create " + full_path(to);
  if (renameat2(AT_FDCWD, full_path(from).c_str(), AT_FDCWD, full_path(to).c_str(), RENAME_NOREPLACE) != 0)
    return errno_status(what, errno, errno == EEXIST ? "choose another path, or --force to replace it" : "");
  const int error = sync_folder(path_);
  return error == 0 ? Status() : errno_status(what, error);
}

Status DirectFolder::remove_file(const std::string& name) {
  std::error_code error;
  std::filesystem::remove(full_path(name), error);
  return error ? errno_status("remove " + full_path(name), error.value()) : Status();
}

std::vector<std::shared_ptr<DriveFolder>> direct_folders(const std::vector<std::string>& paths, Access access) {
  std::vector<std::shared_ptr<DriveFolder>> folders;
  for (const std::string& path : paths) folders.push_back(std::make_shared<DirectFolder>(path, access));
  return folders;
}

}  // namespace penstock::aio
