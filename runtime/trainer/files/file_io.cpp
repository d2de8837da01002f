#include "runtime/trainer/files/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "aio/file_descriptor.h"

namespace penstock::trainer {
namespace {

// The kernel moves less than 2 GiB at once.
constexpr size_t kPieceMostBytes = size_t{1} << 30;

}  // namespace

Status read_all(int descriptor, const std::string& path, uint64_t offset_bytes, std::span<std::byte> into) {
  for (size_t done = 0; done < into.size();) {
    const ssize_t got = ::pread(descriptor, into.data() + done, std::min(into.size() - done, kPieceMostBytes),
                                static_cast<off_t>(offset_bytes + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return errno_status(text("read ", into.size() - done, " B at ", offset_bytes + done, " of ", path), errno);
    if (got == 0)
      return Status(Code::kCorrupt, text("read ", into.size(), " B at ", offset_bytes, " of ", path,
                                         ": the file ends after ", done, " of them"));
    done += static_cast<size_t>(got);
  }
  return Status();
}

Status write_all(int descriptor, const std::string& path, uint64_t offset_bytes, std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::pwrite(descriptor, bytes.data() + done, std::min(bytes.size() - done, kPieceMostBytes),
                                 static_cast<off_t>(offset_bytes + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int error = put < 0 ? errno : ENOSPC;
      return errno_status(text("write ", bytes.size() - done, " B at ", offset_bytes + done, " of ", path), error);
    }
    done += static_cast<size_t>(put);
  }
  return Status();
}

Result<std::string> read_small_file(const std::string& path, uint64_t most_bytes) {
  const aio::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return errno_status(text("open ", path), errno);
  struct stat info {};
  if (::fstat(file.number(), &info) != 0) return errno_status(text("stat ", path), errno);
  if (!S_ISREG(info.st_mode))
    return Status(Code::kUsage, text("open ", path, ": is not a file"),
                  S_ISDIR(info.st_mode) ? "one of the folder's files" : "a plain file");
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes > most_bytes)
    return Status(Code::kUsage, text("read ", path, ": has ", bytes, " B, at most ", most_bytes, " B expected"),
                  "check the path: this is larger than any such file");
  std::string content(bytes, '\0');
  PENSTOCK_TRY(read_all(file.number(), path, 0, std::as_writable_bytes(std::span(content))));
  return content;
}

Status write_small_file(const std::string& path, const std::string& content) {
  const aio::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.is_open()) return errno_status(text("create ", path), errno);
  PENSTOCK_TRY(write_all(file.number(), path, 0, std::as_bytes(std::span(content))));
  return ::fsync(file.number()) == 0 ? Status() : errno_status(text("flush ", path), errno);
}

}  // namespace penstock::trainer
