#include "runtime/engine/kept_files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "aio/file_descriptor.h"
#include "tiering/store/store_header.h"
#include "tiering/store/store_layout.h"
#include "tiering/tier.h"

namespace penstock::engine {
namespace {

namespace fs = std::filesystem;

Status copy_bytes(int from, int to, const CopiedRun& run, const std::string& what) {
  auto from_offset = static_cast<off_t>(run.offset_bytes), to_offset = from_offset;
  for (uint64_t left = run.length_bytes; left > 0;) {
    const ssize_t copied = ::copy_file_range(from, &from_offset, to, &to_offset, std::min<uint64_t>(left, kGiB), 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) return errno_status(what, errno);
    if (copied == 0) return Status(Code::kEnvironment, text(what, ": the file ends ", left, " B early"));
    left -= static_cast<uint64_t>(copied);
  }
  return Status();
}

Status refuse_without_space(const std::string& target, std::span<const CopiedRun> runs) {
  uint64_t needed = 0;
  for (const CopiedRun& run : runs) needed += run.length_bytes;
  std::error_code unknown;
  const fs::space_info space = fs::space(fs::path(target).parent_path(), unknown);
  if (unknown || space.available >= needed) return Status();
  return Status(Code::kDoesNotFit,
                text(target, ": a copy of the step needs ", needed, " B here and ", space.available, " B are free"),
                "free some space, or remove a step that is kept: `penstock checkpoint ls` lists them");
}

}  // namespace

Status sync_folder(const std::string& folder) {
  const int error = aio::sync_folder(folder);
  return error == 0 ? Status() : errno_status(text("flush the folder ", folder), error);
}

Status copy_file(const std::string& source, const std::string& target, std::span<const CopiedRun> runs) {
  const std::string what = text("copy ", source, " to ", target);
  const aio::FileDescriptor from(::open(source.c_str(), O_RDONLY | O_CLOEXEC));
  if (!from.is_open()) return errno_status(what, errno);
  const aio::FileDescriptor to(::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!to.is_open()) return errno_status(what, errno);
  if (::ioctl(to.number(), FICLONE, from.number()) != 0) {
    struct stat found {};
    if (::fstat(from.number(), &found) != 0 || ::ftruncate(to.number(), found.st_size) != 0)
      return errno_status(what, errno);
    const CopiedRun all{0, static_cast<uint64_t>(found.st_size)};
    if (runs.empty()) runs = std::span(&all, 1);
    PENSTOCK_TRY(refuse_without_space(target, runs));
    for (const CopiedRun& run : runs) PENSTOCK_TRY(copy_bytes(from.number(), to.number(), run, what));
  }
  if (::fsync(to.number()) != 0) return errno_status(what, errno);
  return Status();
}

bool are_of_two_stores(const std::string& one, const std::string& other) {
  auto store_of = [](const std::string& path) -> std::optional<StoreId> {
    const aio::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    for (uint32_t copy : {0, 1}) {
      std::vector<std::byte> bytes(kAlignmentBytes);
      const auto offset = static_cast<off_t>(StoreLayout::header_offset(copy));
      if (::pread(file.number(), bytes.data(), bytes.size(), offset) != std::ssize(bytes)) continue;
      const Result<StoreHeader> header = StoreHeader::decode(bytes, path);
      if (header.ok()) return header->store;
    }
    return std::nullopt;
  };
  const std::optional<StoreId> first = store_of(one), second = store_of(other);
  return first && second && *first != *second;
}

bool have_the_same_roots(const std::string& one, const std::string& other) {
  auto roots_of = [](const std::string& path) {
    std::string roots(2 * kAlignmentBytes, '\0');
    const aio::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    for (uint64_t place : {0, 1}) {
      const auto offset = static_cast<off_t>(StoreLayout::root_offset(place));
      const ssize_t there = ::pread(file.number(), roots.data() + place * kAlignmentBytes, kAlignmentBytes, offset);
      if (there != static_cast<ssize_t>(kAlignmentBytes)) return std::string();
    }
    return roots;
  };
  const std::string roots = roots_of(one);
  return !roots.empty() && roots == roots_of(other);
}

Status make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? errno_status(text("make the folder ", folder), error.value()) : Status();
}

Status rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return errno_status(text("rename ", from, " to ", to), errno);
  return Status();
}

void remove_all(const std::string& path) {
  std::error_code unimportant;
  fs::remove_all(path, unimportant);
}

Status write_line(const std::string& path, const std::string& line) {
  const aio::FileDescriptor to(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::string bytes = line + "\n";
  const bool is_written = to.number() >= 0 && ::write(to.number(), bytes.data(), bytes.size()) == std::ssize(bytes);
  if (!is_written || ::fsync(to.number()) != 0) return errno_status("write " + path, errno);
  return sync_folder(fs::path(path).parent_path());
}

std::optional<std::string> line_in(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  return std::getline(in, line) && !in.eof() ? std::optional(line) : std::nullopt;
}

}  // namespace penstock::engine
