#include "aio/direct_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/stat.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "aio/drive_info.h"
#include "aio/file_descriptor.h"

namespace penstock::aio {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string remedy_for_opening(int error) {
  switch (error) {
    case ENOENT:
      return "create the folder first, or correct the path";
    case ENOTDIR:
    case EISDIR:
      return "give a folder's path for a store and a regular file's for a file";
    case EEXIST:
      return "choose another path, or --force to replace it";
    case EACCES:
    case EPERM:
      return "give yourself the right to write there, or choose another path";
    case EROFS:
      return "choose a path on a file system that is mounted for writing";
    case EFBIG:
      return "raise `ulimit -f`, or choose a file system that takes files so large";
    default:
      return {};
  }
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Copy-on-write file systems with checksums buffer, because the bytes must not change while the drive reads them.
constexpr int kNoCopyOnWrite = FS_NOCOW_FL;

bool copies_on_write(int fd) {
  int flags = 0;
  return ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && (flags & kNoCopyOnWrite) == 0;
}

bool forbid_copy_on_write(int fd) {
  int flags = 0;
  if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return false;
  flags |= kNoCopyOnWrite;
  return ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
}

// Is the file's first page in the page cache? Looking does not bring it there.
bool first_page_cached(int fd) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* mapping = mmap(nullptr, page, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return false;
  unsigned char resident = 0;
  const bool cached = mincore(mapping, page, &resident) == 0 && (resident & 1) != 0;
  munmap(mapping, page);
  return cached;
}

}  // namespace

Result<std::unique_ptr<DirectFile>> DirectFile::create(const std::string& path, uint64_t size_bytes, Existing existing,
                                                       FileOptions options) {
  if (size_bytes == 0 || size_bytes % kAlignmentBytes != 0 || size_bytes > uint64_t{1} << 62) {
    return Status(Code::kUsage, text("create ", path, ": invalid size: ", size_bytes, " B"),
                  text("choose a positive multiple of ", kAlignmentBytes, " B"));
  }
  std::unique_ptr<DirectFile> file(new DirectFile(path));
  const int create_flags = existing == Existing::refuse ? O_CREAT | O_EXCL : O_CREAT;
  struct stat before;
  const bool is_new = lstat(path.c_str(), &before) != 0;
  PENSTOCK_TRY(file->open_descriptor(O_RDWR | create_flags));
  file->remove_at_end_ = is_new;
  PENSTOCK_TRY(file->lock(Access::read_write, options.lock_wait));
  PENSTOCK_TRY(file->look_at_drive(options.in_memory));
  PENSTOCK_TRY(file->allocate(size_bytes));
  PENSTOCK_TRY(file->find_alignment());
  PENSTOCK_TRY(file->try_direct(Access::read_write, true));
  return Result<std::unique_ptr<DirectFile>>(std::move(file));
}

Result<std::unique_ptr<DirectFile>> DirectFile::open(const std::string& path, Access access, FileOptions options) {
  std::unique_ptr<DirectFile> file(new DirectFile(path));
  PENSTOCK_TRY(file->open_descriptor(access == Access::read_only ? O_RDONLY : O_RDWR));
  PENSTOCK_TRY(file->lock(access, options.lock_wait));
  PENSTOCK_TRY(file->look_at_drive(options.in_memory));
  struct stat now;
  if (fstat(file->fd_, &now) != 0) return errno_status("open " + path, errno);
  file->size_bytes_ = round_down(static_cast<uint64_t>(now.st_size), kAlignmentBytes);
  if (file->size_bytes_ == 0) {
    return Status(Code::kCorrupt,
                  text("open ", path, ": invalid size: ", now.st_size, " B, a positive multiple of ", kAlignmentBytes,
                       " B expected"),
                  "give a file that Penstock created");
  }
  PENSTOCK_TRY(file->refuse_holes(now.st_blocks));
  PENSTOCK_TRY(file->find_alignment());
  PENSTOCK_TRY(file->try_direct(access, false));
  return Result<std::unique_ptr<DirectFile>>(std::move(file));
}

bool is_taken(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return false;
  const bool is_taken = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(file);
  return is_taken;
}

Status taken_refusal(const std::string& path, milliseconds waited) {
  return Status(Code::kEnvironment, text("open ", path, ": locked by another run, waited ", waited.count(), " ms"),
                text("end that run first (fuser -v ", path, " names it), or use another path"));
}

DirectFile::~DirectFile() {
  if (fd_ < 0) return;
  if (remove_at_end_) unlink(path_.c_str());
  close(fd_);
}

Status DirectFile::open_descriptor(int flags) {
  const std::string what = ((flags & O_CREAT) != 0 ? "create " : "open ") + path_;
  // Checked before it is opened: opening a device or a pipe may already have an effect.
  struct stat found;
  if (stat(path_.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    const char* kind = S_ISDIR(found.st_mode)   ? "a folder"
                       : S_ISBLK(found.st_mode) ? "a block device, which is never written to"
                                                : "not a regular file";
    return Status(Code::kUsage, text(what, ": it is ", kind),
                  "give the path of a regular file on a mounted file system");
  }
  fd_ = ::open(path_.c_str(), flags | O_DIRECT | O_CLOEXEC, 0600);
  if (fd_ >= 0) return Status();
  if (errno != EINVAL) return errno_status(what, errno, remedy_for_opening(errno));
  if ((flags & O_EXCL) != 0) unlink(path_.c_str());  // EINVAL comes after the file has been made
  return Status(Code::kEnvironment, text(what, ": no direct I/O on this file system"),
                "put it on ext4, xfs or btrfs on a local drive");
}

bool DirectFile::is_removed() const {
  struct stat now;
  return fstat(fd_, &now) == 0 && now.st_nlink == 0;
}

Status DirectFile::lock(Access access, milliseconds wait) {
  const int kind = access == Access::read_only ? LOCK_SH : LOCK_EX;
  const auto until = steady_clock::now() + wait;
  while (flock(fd_, kind | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return errno_status("lock " + path_, errno);
    if (steady_clock::now() >= until) return taken_refusal(path_, wait);
    std::this_thread::sleep_for(milliseconds(10));
  }
  if (is_removed()) {
    return Status(Code::kEnvironment,
                  text("open ", path_, ": removed by another process while this one waited for its lock"),
                  "run it again: another may lie there now");
  }
  return Status();
}

Status DirectFile::look_at_drive(InMemory in_memory) {
  PENSTOCK_TRY_ASSIGN(info, describe_drive(path_));
  drive_ = info.id;
  file_system_ = info.file_system;
  if (info.in_memory() && in_memory == InMemory::refuse) {
    return Status(Code::kEnvironment, text("open ", path_, ": on ", file_system_, ", which is memory and not a drive"),
                  "choose a path on a drive");
  }
  return Status();
}

// DirectFile allocates its files when it creates them. A copy may have holes where nothing was written yet, but a file
// that is longer than its whole drive is no copy, and its length must not decide how much time and memory are spent.
Status DirectFile::refuse_holes(int64_t blocks) const {
  PENSTOCK_TRY_ASSIGN(info, describe_drive(path_));
  if (size_bytes_ <= std::max(info.total_bytes, static_cast<uint64_t>(blocks) * 512) || info.total_bytes == 0) {
    return Status();
  }
  return Status(Code::kDoesNotFit,
                text("open ", path_, ": ", bytes_text(size_bytes_), " long, on a file system of ",
                     bytes_text(info.total_bytes), ": most of it is holes"),
                "restore it from a copy");
}

Status DirectFile::allocate(uint64_t size_bytes) {
  PENSTOCK_TRY_ASSIGN(info, describe_drive(path_));
  struct stat before;
  if (fstat(fd_, &before) != 0) return errno_status("create " + path_, errno);
  const uint64_t available_bytes = info.free_bytes + static_cast<uint64_t>(before.st_blocks) * 512;
  const Status full(Code::kDoesNotFit,
                    text("create ", path_, ": ", size_bytes, " B (", bytes_text(size_bytes), ") needed, ",
                         available_bytes, " B (", bytes_text(available_bytes), ") available in ", info.mount_point),
                    text("free ", bytes_text(size_bytes - std::min(size_bytes, available_bytes)), " in ",
                         info.mount_point, ", ask for less, or use another drive"));
  if (size_bytes > available_bytes) return full;

  remove_at_end_ = true;  // from here on what was there before is gone
  if (ftruncate(fd_, 0) != 0) return errno_status("create " + path_, errno);
  // The attribute can only be set on an empty file.
  if (file_system_ == "btrfs" && forbid_copy_on_write(fd_)) {
    note_ = "created without copy-on-write, so that direct I/O stays direct";
  }
  int result;
  do {
    result = fallocate(fd_, 0, 0, static_cast<off_t>(size_bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EOPNOTSUPP) {
    result = ftruncate(fd_, static_cast<off_t>(size_bytes));
    note_ = "this file system cannot allocate ahead: the first write of each block may still find it full";
  }
  if (result != 0 && (errno == ENOSPC || errno == EDQUOT)) return full;
  if (result != 0) return errno_status("create " + path_, errno, remedy_for_opening(errno));
  // The file's name and size must survive a crash too.
  if (fsync(fd_) != 0) return errno_status("create " + path_, errno);
  if (const int error = sync_folder(folder_of(path_)); error != 0) return errno_status("create " + path_, error);
  size_bytes_ = size_bytes;
  return Status();
}

Status DirectFile::find_alignment() {
  struct statx told {};
  alignment_bytes_ = kAlignmentBytes;  // what every drive accepts, for kernels that do not tell
  if (syscall(SYS_statx, fd_, "", AT_EMPTY_PATH, STATX_DIOALIGN, &told) != 0 || (told.stx_mask & STATX_DIOALIGN) == 0) {
    return Status();
  }
  alignment_bytes_ = std::max(told.stx_dio_mem_align, told.stx_dio_offset_align);
  if (alignment_bytes_ == 0 || kAlignmentBytes % alignment_bytes_ != 0) {
    return Status(Code::kEnvironment,
                  text("open ", path_, ": no direct I/O here (", file_system_, " asks for an alignment of ",
                       alignment_bytes_, " B)"),
                  "put it on ext4, xfs or btrfs on a local drive");
  }
  return Status();
}

// Moves one block each way and checks that it did not enter the page cache.
Status DirectFile::try_direct(Access access, bool may_write) {
  Buffer block = Buffer::on_heap(kAlignmentBytes);
  std::memset(block.data(), 0, block.size_bytes());
  const auto length = static_cast<ssize_t>(block.size_bytes());
  // The file may have been copied here a moment ago, which leaves it in the cache. All of it is dropped, because the
  // kernel keeps a large folio if only a part of it is dropped.
  if (!may_write && first_page_cached(fd_)) fdatasync(fd_);
  posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  // If the page is cached already, another process has read it. For files that this user neither owns nor may write,
  // the kernel always says that it is.
  const bool says_nothing = first_page_cached(fd_);
  ssize_t moved = may_write ? pwrite(fd_, block.data(), block.size_bytes(), 0) : length;
  if (moved >= 0) moved = pread(fd_, block.data(), block.size_bytes(), 0);
  const std::string what = "try direct I/O on " + path_;
  if (moved < 0) return errno_status(what, errno, "put it on ext4, xfs or btrfs on a local drive");
  if (moved != length) {
    return Status(Code::kEnvironment, text(what, ": ", moved, " B moved of ", length),
                  "look into the kernel's log (dmesg)");
  }
  const bool in_memory = file_system_ == "tmpfs" || file_system_ == "ramfs";
  // A copy-on-write file may buffer writes even if it does not buffer reads.
  const bool buffers = (!says_nothing && first_page_cached(fd_)) ||
                       (file_system_ == "btrfs" && access == Access::read_write && copies_on_write(fd_));
  if (!in_memory && buffers) {
    return Status(Code::kEnvironment, text("open ", path_, ": ", file_system_, " buffers direct I/O in the page cache"),
                  file_system_ == "btrfs" ? "make the file anew, or chattr +C its folder before copying it there"
                                          : "put it on ext4 or xfs on a local drive");
  }
  return Status();
}

}  // namespace penstock::aio
