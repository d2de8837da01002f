#include "tools/nvme/scratch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "tools/penstock/quantity.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr const char* kPrefix = ".penstock-scratch-";
constexpr uint64_t kSmallestUnasked = 64 * kMiB;
// Left free for the file system's own needs.
constexpr uint64_t kSpare = 16 * kMiB;

const char* kind_of(mode_t mode) {
  if (S_ISBLK(mode)) return "a folder expected, not a block device, which would be overwritten";
  if (S_ISREG(mode)) return "a folder expected, not a file";
  return "a folder expected";
}

}  // namespace

Status refuse_repeated_folders(const std::string& what, const std::vector<std::string>& folders) {
  for (size_t i = 0; i < folders.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!is_same_path(folders[i], folders[j])) continue;
      return Status(Code::kUsage, text(what, ": ", folders[i], ": given twice"), "each folder once");
    }
  }
  return {};
}

Result<aio::DriveInfo> examine_folder(const std::string& path) {
  const std::string what = "measure folder: " + path;
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return errno_status(what, errno, "an existing folder on the drive to measure");
  if (!S_ISDIR(found.st_mode)) {
    return Status(Code::kUsage, what + ": " + kind_of(found.st_mode),
                  S_ISBLK(found.st_mode) ? "a folder on a file system mounted from it" : "its folder");
  }
  PENSTOCK_TRY_ASSIGN(drive, aio::describe_drive(path));
  if (drive.in_memory()) {
    return Status(Code::kEnvironment, text(what, ": on ", drive.file_system, ", which is memory, not a drive"),
                  "a folder on a drive; `df -T` lists the file systems");
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    return errno_status(what, errno,
                        errno == EROFS ? "mount -o remount,rw " + drive.mount_point + ", or another folder"
                                       : "a folder that you may write to, or run it as its owner");
  }
  return drive;
}

Result<std::unique_ptr<ScratchFolder>> ScratchFolder::open(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(drive, examine_folder(path));
  const std::string what = "measure folder: " + path;
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return errno_status(what, errno, "a folder that you may read and write");
  std::unique_ptr<ScratchFolder> scratch(new ScratchFolder(path, drive, folder));
  if (flock(folder, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return Status(Code::kEnvironment, what + ": locked: another run is measuring here", "wait for it to end");
    }
    return errno_status(what + ": lock", errno, "a folder on a local file system");
  }
  scratch->remove_leftovers();
  return scratch;
}

ScratchFolder::~ScratchFolder() {
  file_.reset();
  removed_.reset();
  close(folder_);
}

// Whoever holds the folder's lock knows that no other run needs what lies there.
void ScratchFolder::remove_leftovers() const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    if (entry.path().filename().string().starts_with(kPrefix)) std::filesystem::remove(entry.path(), error);
  }
}

Status ScratchFolder::make_file(uint64_t size_bytes, uint64_t wanted_bytes) {
  PENSTOCK_TRY_ASSIGN(drive, aio::describe_drive(path_));  // leftovers are gone by now
  const uint64_t usable = drive.free_bytes > kSpare ? drive.free_bytes - kSpare : 0;
  if (size_bytes == 0) {
    size_bytes = std::max(kSmallestUnasked, std::min(wanted_bytes, usable / 2));
  } else if (size_bytes < kUnitBytes) {
    return Status(Code::kUsage,
                  text("create scratch file: ", path_, ": ", bytes_text(size_bytes), ", at least ",
                       bytes_text(kUnitBytes), " expected"),
                  "--size 4GiB, or leave --size out");
  }
  size_bytes = round_down(size_bytes, kUnitBytes);
  if (size_bytes > usable) {
    return Status(Code::kDoesNotFit,
                  text("create scratch file: ", path_, ": needs ", bytes_text(size_bytes), " and ", bytes_text(kSpare),
                       " to spare, ", bytes_text(drive.free_bytes), " are free"),
                  usable >= kSmallestUnasked ? "--size " + bytes_flag_text(round_down(usable / 2, kMiB))
                                             : "free some space, or use a folder on another drive");
  }
  const std::string name = text(path_, "/", kPrefix, getpid());
  removed_ = std::make_unique<RemovedAtExit>(name);
  PENSTOCK_TRY_ASSIGN(file, aio::DirectFile::create(name, size_bytes));
  file_ = std::move(file);
  return {};
}

}  // namespace penstock::tools
