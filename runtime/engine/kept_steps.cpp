#include "runtime/engine/kept_steps.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "aio/store/tile_store.h"

namespace penstock::engine {
namespace {

namespace fs = std::filesystem;

struct Descriptor {
  int fd = -1;

  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

Status sync_folder(const std::string& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.fd < 0 || ::fsync(opened.fd) != 0) return errno_status(text("flush the folder ", folder), errno);
  return Status();
}

Status copy_bytes(int from, int to, const std::string& what) {
  while (true) {
    const ssize_t copied = ::copy_file_range(from, nullptr, to, nullptr, size_t{1} << 30, 0);
    if (copied == 0) return Status();
    if (copied > 0 || errno == EINTR) continue;
    return errno_status(what, errno);
  }
}

Status copy_file(const std::string& source, const std::string& target) {
  const std::string what = text("copy ", source, " to ", target);
  const Descriptor from(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
  if (from.fd < 0) return errno_status(what, errno);
  const Descriptor to(::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (to.fd < 0) return errno_status(what, errno);
  if (::ioctl(to.fd, FICLONE, from.fd) != 0) PENSTOCK_TRY(copy_bytes(from.fd, to.fd, what));
  if (::fsync(to.fd) != 0) return errno_status(what, errno);
  return Status();
}

Status make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? errno_status(text("make the folder ", folder), error.value()) : Status();
}

Status rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return errno_status(text("rename ", from, " to ", to), errno);
  return Status();
}

void remove_all(const std::string& path) {
  std::error_code unimportant;
  fs::remove_all(path, unimportant);
}

std::string file_name() { return aio::store_file_name(0); }

}  // namespace

std::string KeptSteps::place_of(const std::string& folder, uint64_t step) const { return text(folder, "/kept/", step); }

bool KeptSteps::is_kept(uint64_t step) const {
  return std::all_of(folders_.begin(), folders_.end(), [&](const std::string& folder) {
    std::error_code unknown;
    return fs::exists(place_of(folder, step) + "/" + file_name(), unknown);
  });
}

std::vector<uint64_t> KeptSteps::steps() const {
  std::vector<uint64_t> found;
  std::error_code unknown;
  for (const auto& entry : fs::directory_iterator(folders_.front() + "/kept", unknown)) {
    const std::string name = entry.path().filename().string();
    uint64_t step = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    if (error == std::errc() && end == name.data() + name.size() && is_kept(step)) found.push_back(step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

Status KeptSteps::check(uint64_t step) const {
  const std::vector<uint64_t> kept = steps();
  if (std::find(kept.begin(), kept.end(), step) != kept.end()) return Status();
  std::string list;
  for (uint64_t other : kept) list += text(list.empty() ? "" : ", ", other);
  return Status(Code::kUsage, text("kept steps: step ", step, " is not among them: ", list.empty() ? "none" : list));
}

Status KeptSteps::keep(uint64_t step) {
  if (is_kept(step)) return Status();
  for (const std::string& folder : folders_) {
    const std::string place = place_of(folder, step), partial = place + ".partial";
    remove_all(partial);
    remove_all(place);
    PENSTOCK_TRY(make_folder(partial));
    PENSTOCK_TRY(copy_file(folder + "/" + file_name(), partial + "/" + file_name()));
    PENSTOCK_TRY(sync_folder(partial));
    PENSTOCK_TRY(rename(partial, place));
    PENSTOCK_TRY(sync_folder(folder + "/kept"));
  }
  return Status();
}

Status KeptSteps::restore(uint64_t step) const {
  PENSTOCK_TRY(check(step));
  const std::string name = file_name(), restored = name + ".restored";
  for (const std::string& folder : folders_) {
    PENSTOCK_TRY(copy_file(place_of(folder, step) + "/" + name, folder + "/" + restored));
  }
  // A crash between two drives' names leaves roots that differ, which opening tells and does not believe.
  for (const std::string& folder : folders_) {
    PENSTOCK_TRY(rename(folder + "/" + restored, folder + "/" + name));
    PENSTOCK_TRY(sync_folder(folder));
  }
  return Status();
}

Status KeptSteps::drop(uint64_t step) {
  PENSTOCK_TRY(check(step));
  for (const std::string& folder : folders_) remove_all(place_of(folder, step));
  return Status();
}

}  // namespace penstock::engine
