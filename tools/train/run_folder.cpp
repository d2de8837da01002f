#include "tools/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

namespace penstock::tools {
namespace {

constexpr std::chrono::milliseconds kPause{10}, kWaitsFor{2000};  // for one that is about to end

// File systems that cannot lock a folder leave it to the stores' locks.
Status lock(int descriptor, const std::string& path) {
  const auto until = std::chrono::steady_clock::now() + kWaitsFor;
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return Status();
    if (std::chrono::steady_clock::now() >= until)
      return Status(Code::kEnvironment, text("--run: ", path, ": another run writes its log there"),
                    "another --run, or end that run first");
    std::this_thread::sleep_for(kPause);
  }
  return Status();
}

}  // namespace

Result<RunFolder> RunFolder::open(const std::string& path) {
  RunFolder folder;
  if (path.empty()) return Result<RunFolder>(std::move(folder));
  const auto refused = [&](int error) {
    const bool is_right = error == EACCES || error == EPERM || error == EROFS;
    return errno_status("--run: " + path, error, is_right ? "a folder that you may write to" : "");
  };
  std::error_code failed;
  if (std::filesystem::create_directories(path, failed)) folder.made_ = path;
  if (failed) return refused(failed.value());
  if (access(path.c_str(), W_OK | X_OK) != 0) return refused(errno);
  folder.descriptor_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder.descriptor_ < 0) return refused(errno);
  PENSTOCK_TRY(lock(folder.descriptor_, path));
  // One that had made it, and was refused, may have removed it.
  struct stat now {};
  if (fstat(folder.descriptor_, &now) != 0 || now.st_nlink == 0)
    return Status(Code::kEnvironment, text("--run: ", path, ": was removed by another process"), "run it again");
  return Result<RunFolder>(std::move(folder));
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : made_(std::exchange(other.made_, {})), descriptor_(std::exchange(other.descriptor_, -1)) {}

RunFolder::~RunFolder() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!made_.empty()) rmdir(made_.c_str());
}

}  // namespace penstock::tools
