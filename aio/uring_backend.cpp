#include "aio/uring_backend.h"

#if !defined(PENSTOCK_HAVE_URING)

namespace penstock::aio {

Result<std::unique_ptr<IoBackend>> make_uring_backend(uint32_t) {
  return Status(Code::kEnvironment, "io_uring: not part of this build", "install liburing-dev and build again");
}

}  // namespace penstock::aio

#else

#include <fcntl.h>
#include <liburing.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "aio/event_fd.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

using std::chrono::nanoseconds;

constexpr unsigned kWindows = 64;           // places for registered memory
constexpr unsigned kFiles = 64;             // places for registered files
constexpr uint64_t kWindowBytesMax = kGiB;  // the kernel's limit for one
constexpr uint64_t kWindowBytesMin = 2 * kMiB;
// The kernel plugs more than two requests that are submitted together, and merges neighbours into requests of 4 MiB.
// Measured: 10 to 15 % less write bandwidth than with 1 MiB each. Small pieces gain more by sharing the call.
constexpr unsigned kLargeTogether = 2;
constexpr uint32_t kLargeBytes = 256 * 1024;

// A wait with its own timeout sets and clears a timer every time. Long waits instead share a timer in the ring, which
// wakes them that often, however many completions they wait for.
constexpr nanoseconds kTick = std::chrono::milliseconds(250);
constexpr uint64_t kTickTag = ~uint64_t{0};

struct Mode {
  unsigned flags;
  const char* words;
};
constexpr Mode kModes[] = {
    {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
     "deferred task running"},
    {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, "cooperative task running"},
    {0, "plain ring"},
};

// Registered memory: the kernel need not pin the pages of pieces inside it.
struct Window {
  std::byte* begin;
  std::byte* end;
};

class UringBackend final : public IoBackend {
 public:
  UringBackend(uint32_t capacity, int* error);
  ~UringBackend() override;

  uint32_t capacity() const override { return capacity_; }
  void submit(const Piece& piece) override;
  void start() override;
  size_t reap(std::span<Completion> ended, nanoseconds timeout) override;
  void wake_after(uint32_t pieces) override { wake_after_ = pieces; }
  Result<int> completion_fd() override;
  uint64_t register_memory(std::span<std::byte> memory) override;
  void register_file(const File& file) override;
  void unregister_file(const File& file) override;
  std::string description() const override;

  int probe();

 private:
  bool register_window(std::span<std::byte> window);
  int window_of(const Piece& piece);
  int place_of(const File* file) const;
  size_t take(std::span<Completion> ended);
  void enter(nanoseconds timeout);
  void start_tick();
  bool kernel_has_task_work() const { return (*ring_.sq.kflags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0; }

  const uint32_t capacity_;
  io_uring ring_{};
  const char* mode_ = nullptr;
  EventFd event_fd_;
  unsigned large_waiting_ = 0;  // for start()
  unsigned wake_after_ = 1;
  bool ticking_ = false;
  std::vector<Window> windows_;
  size_t last_window_ = 0;
  bool has_windows_ = false;  // the kernel has given us the table
  std::array<const File*, kFiles> files_{};
  bool has_files_ = false;
  uint64_t registered_bytes_ = 0;
  uint64_t refused_bytes_ = 0;
  int refused_error_ = 0;
};

UringBackend::UringBackend(uint32_t capacity, int* error) : capacity_(capacity) {
  int result = -EINVAL;
  for (const Mode& mode : kModes) {
    io_uring_params params{};
    params.flags = mode.flags | IORING_SETUP_CQSIZE;
    params.cq_entries = 2 * capacity;
    result = io_uring_queue_init_params(capacity, &ring_, &params);
    mode_ = mode.words;
    if (result != -EINVAL) break;
  }
  *error = -result;
  if (result < 0) {
    mode_ = nullptr;
    return;
  }
  io_uring_register_ring_fd(&ring_);  // saves a look-up a call; a kernel without it loses nothing
  has_files_ = io_uring_register_files_sparse(&ring_, kFiles) == 0;
  has_windows_ = io_uring_register_buffers_sparse(&ring_, kWindows) == 0;
}

UringBackend::~UringBackend() {
  if (mode_ != nullptr) io_uring_queue_exit(&ring_);
}

void UringBackend::submit(const Piece& piece) {
  if (piece.length_bytes >= kLargeBytes) {
    if (large_waiting_ == kLargeTogether) start();
    ++large_waiting_;
  }
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) {
    start();
    sqe = io_uring_get_sqe(&ring_);
  }
  CHECK(sqe != nullptr, "the submission queue of ", capacity_, " entries is full");
  const int place = place_of(piece.file);
  const int fd = place >= 0 ? place : piece.file->descriptor();
  if (piece.operation == Operation::flush) {
    io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
  } else {
    const bool read = piece.operation == Operation::read;
    const int window = window_of(piece);
    const int opcode =
        window >= 0 ? (read ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED) : (read ? IORING_OP_READ : IORING_OP_WRITE);
    io_uring_prep_rw(opcode, sqe, fd, piece.data, piece.length_bytes, piece.offset_bytes);
    if (window >= 0) sqe->buf_index = static_cast<uint16_t>(window);
  }
  if (place >= 0) sqe->flags |= IOSQE_FIXED_FILE;
  sqe->user_data = piece.tag;
}

void UringBackend::start() {
  large_waiting_ = 0;
  while (io_uring_sq_ready(&ring_) > 0) {
    const int result = io_uring_submit(&ring_);
    if (result == -EINTR) continue;
    // The kernel is busy or out of memory: the rest stays in the queue, and the next reap() submits it.
    if (result == -EAGAIN || result == -EBUSY || result == -ENOMEM || result == 0) return;
    CHECK(result > 0, "io_uring_enter: errno ", -result);
  }
}

size_t UringBackend::reap(std::span<Completion> ended, nanoseconds timeout) {
  event_fd_.drain();
  const unsigned wanted = timeout > nanoseconds(0) ? wake_after_ : 1;
  const bool enough = io_uring_cq_ready(&ring_) >= wanted;
  if (!enough || io_uring_sq_ready(&ring_) > 0) enter(enough ? nanoseconds(0) : timeout);
  const size_t count = take(ended);
  // Completions that did not fit into `ended` have already signalled.
  if (event_fd_.made() && io_uring_cq_ready(&ring_) > 0) event_fd_.signal();
  return count;
}

size_t UringBackend::take(std::span<Completion> ended) {
  unsigned head;
  unsigned seen = 0;
  size_t count = 0;
  io_uring_cqe* cqe;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    if (count == ended.size()) break;
    ++seen;
    if (cqe->user_data == kTickTag) {
      ticking_ = false;
    } else {
      ended[count++] = {static_cast<uint32_t>(cqe->user_data), cqe->res};
    }
  }
  io_uring_cq_advance(&ring_, seen);
  return count;
}

// Submits the queue and waits for a completion in one system call.
void UringBackend::enter(nanoseconds timeout) {
  large_waiting_ = 0;
  int result = 0;
  if (timeout >= kTick) {
    if (!ticking_) start_tick();
    result = io_uring_submit_and_wait(&ring_, wake_after_);
  } else if (timeout > nanoseconds(0)) {
    __kernel_timespec until{timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
    io_uring_cqe* first = nullptr;
    result = io_uring_submit_and_wait_timeout(&ring_, &first, wake_after_, &until, nullptr);
  } else if (io_uring_sq_ready(&ring_) > 0) {
    result = io_uring_submit_and_get_events(&ring_);
  } else if (kernel_has_task_work()) {
    result = io_uring_get_events(&ring_);
  }
  const bool passing =
      result == -ETIME || result == -EINTR || result == -EAGAIN || result == -EBUSY || result == -ENOMEM;
  CHECK(result >= 0 || passing, "io_uring_enter: errno ", -result);
}

void UringBackend::start_tick() {
  static const __kernel_timespec kEvery{0, kTick.count()};
  if (io_uring_sq_space_left(&ring_) == 0) start();
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return;  // as many as fit are under way, and the first to end wakes us
  io_uring_prep_timeout(sqe, const_cast<__kernel_timespec*>(&kEvery), 0, 0);
  sqe->user_data = kTickTag;
  ticking_ = true;
}

Result<int> UringBackend::completion_fd() {
  const bool first = !event_fd_.made();
  PENSTOCK_TRY_ASSIGN(fd, event_fd_.make());
  const int answer = first ? io_uring_register_eventfd(&ring_, fd) : 0;
  if (answer < 0) return errno_status("io_uring: eventfd for completions", -answer);
  return fd;
}

uint64_t UringBackend::register_memory(std::span<std::byte> memory) {
  const uint64_t before = registered_bytes_;
  uint64_t window_bytes = kWindowBytesMax;
  while (has_windows_ && !memory.empty() && windows_.size() < kWindows) {
    window_bytes = std::min<uint64_t>(window_bytes, memory.size());
    if (register_window(memory.first(window_bytes))) {
      memory = memory.subspan(window_bytes);
    } else if (window_bytes >= 2 * kWindowBytesMin) {
      window_bytes = round_down(window_bytes / 2, kWindowBytesMin);  // less may still fit the memlock limit
    } else {
      break;
    }
  }
  refused_bytes_ += memory.size();
  return registered_bytes_ - before;
}

bool UringBackend::register_window(std::span<std::byte> window) {
  const iovec place{window.data(), window.size()};
  const __u64 tag = 0;
  const int result =
      io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(windows_.size()), &place, &tag, 1);
  if (result < 0) {
    refused_error_ = -result;
    return false;
  }
  windows_.push_back({window.data(), window.data() + window.size()});
  registered_bytes_ += window.size();
  return true;
}

int UringBackend::window_of(const Piece& piece) {
  const auto holds = [&](const Window& window) {
    return piece.data >= window.begin && piece.data + piece.length_bytes <= window.end;
  };
  if (last_window_ < windows_.size() && holds(windows_[last_window_])) return static_cast<int>(last_window_);
  const auto found = std::find_if(windows_.begin(), windows_.end(), holds);
  if (found == windows_.end()) return -1;
  last_window_ = static_cast<size_t>(found - windows_.begin());
  return static_cast<int>(last_window_);
}

void UringBackend::register_file(const File& file) {
  if (!has_files_ || place_of(&file) >= 0) return;
  const auto free = std::find(files_.begin(), files_.end(), nullptr);
  if (free == files_.end()) return;
  const int fd = file.descriptor();
  const int result = io_uring_register_files_update(&ring_, static_cast<unsigned>(free - files_.begin()), &fd, 1);
  if (result == 1) *free = &file;
}

void UringBackend::unregister_file(const File& file) {
  const int place = place_of(&file);
  if (place < 0) return;
  const int none = -1;
  CHECK(io_uring_register_files_update(&ring_, static_cast<unsigned>(place), &none, 1) == 1);
  files_[static_cast<size_t>(place)] = nullptr;
}

int UringBackend::place_of(const File* file) const {
  const auto found = std::find(files_.begin(), files_.end(), file);
  return found == files_.end() ? -1 : static_cast<int>(found - files_.begin());
}

std::string UringBackend::description() const {
  std::string out = text("io_uring (", mode_);
  if (registered_bytes_ > 0) out += text(", ", bytes_text(registered_bytes_), " of buffers registered");
  if (refused_bytes_ > 0) {
    out += text(", ", bytes_text(refused_bytes_), " not registered: ",
                refused_error_ == ENOMEM ? "memlock limit, see ulimit -l" : errno_name(refused_error_));
  }
  const auto files = std::count_if(files_.begin(), files_.end(), [](const File* file) { return file != nullptr; });
  if (files > 0) out += text(", ", files, files == 1 ? " file" : " files", " registered");
  return out + ")";
}

// The kernel may create a ring and still refuse to use it.
int UringBackend::probe() {
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<std::byte, 64> bytes;
  io_uring_prep_read(io_uring_get_sqe(&ring_), fd, bytes.data(), bytes.size(), 0);
  int result = io_uring_submit_and_wait(&ring_, 1);
  io_uring_cqe* cqe = nullptr;
  if (result >= 0) result = io_uring_peek_cqe(&ring_, &cqe);
  if (cqe != nullptr) {
    result = std::min(cqe->res, 0);
    io_uring_cqe_seen(&ring_, cqe);
  }
  close(fd);
  return -result;
}

std::string remedy_for(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "allow io_uring in the container's seccomp profile, or sysctl kernel.io_uring_disabled=0";
    case ENOSYS:
      return "a kernel of 5.6 or later";
    case ENOMEM:
      return "raise the memlock limit (ulimit -l)";
    default:
      return {};
  }
}

}  // namespace

Result<std::unique_ptr<IoBackend>> make_uring_backend(uint32_t capacity) {
  int error = 0;
  auto backend = std::make_unique<UringBackend>(capacity, &error);
  if (error == 0) error = backend->probe();
  if (error != 0) return errno_status("io_uring", error, remedy_for(error));
  return Result<std::unique_ptr<IoBackend>>(std::move(backend));
}

}  // namespace penstock::aio

#endif
