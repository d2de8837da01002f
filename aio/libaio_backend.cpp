#include "aio/libaio_backend.h"

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <vector>

#include "aio/event_fd.h"
#include "tiering/check.h"

namespace penstock::aio {
namespace {

using std::chrono::nanoseconds;

class LibaioBackend final : public IoBackend {
 public:
  LibaioBackend(uint32_t capacity, aio_context_t context) : capacity_(capacity), context_(context), blocks_(capacity) {}
  ~LibaioBackend() override { syscall(SYS_io_destroy, context_); }

  uint32_t capacity() const override { return capacity_; }
  void submit(const Piece& piece) override;
  void start() override;
  size_t reap(std::span<Completion> ended, nanoseconds timeout) override;
  void wake_after(uint32_t pieces) override { wake_after_ = pieces; }
  Result<int> completion_fd() override;
  // Every piece names the descriptor, since one that is under way cannot be told to signal later.
  Status prepare() { return event_fd_.make().status(); }
  std::string description() const override { return "libaio"; }

 private:
  size_t take_refused(std::span<Completion> ended);

  const uint32_t capacity_;
  const aio_context_t context_;
  uint32_t wake_after_ = 1;
  std::vector<iocb> blocks_;        // by tag
  std::vector<iocb*> waiting_;      // not with the kernel yet
  std::deque<Completion> refused_;  // the kernel would not take them
  EventFd event_fd_;
  bool watched_ = false;  // somebody waits on event_fd_
};

uint16_t opcode_of(Operation operation) {
  switch (operation) {
    case Operation::read:
      return IOCB_CMD_PREAD;
    case Operation::write:
      return IOCB_CMD_PWRITE;
    case Operation::flush:
      return IOCB_CMD_FDSYNC;
  }
  return IOCB_CMD_NOOP;
}

void LibaioBackend::submit(const Piece& piece) {
  CHECK(piece.tag < capacity_, "tag ", piece.tag, " of ", capacity_);
  iocb& block = blocks_[piece.tag];
  block = {};
  block.aio_data = piece.tag;
  block.aio_lio_opcode = opcode_of(piece.operation);
  block.aio_fildes = static_cast<uint32_t>(piece.file->descriptor());
  block.aio_buf = reinterpret_cast<uint64_t>(piece.data);
  block.aio_nbytes = piece.length_bytes;
  block.aio_offset = static_cast<int64_t>(piece.offset_bytes);
  block.aio_flags = IOCB_FLAG_RESFD;
  block.aio_resfd = static_cast<uint32_t>(event_fd_.fd());
  waiting_.push_back(&block);
}

void LibaioBackend::start() {
  size_t begin = 0;
  while (begin < waiting_.size()) {
    const long taken = syscall(SYS_io_submit, context_, waiting_.size() - begin, &waiting_[begin]);
    if (taken > 0) {
      begin += static_cast<size_t>(taken);
    } else if (taken < 0 && errno == EAGAIN) {
      break;  // full for now; the next reap() tries again
    } else if (taken < 0 && errno != EINTR) {
      refused_.push_back({static_cast<uint32_t>(waiting_[begin]->aio_data), -errno});
      event_fd_.signal();
      ++begin;
    }
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(begin));
}

Result<int> LibaioBackend::completion_fd() {
  watched_ = true;
  return event_fd_.fd();
}

size_t LibaioBackend::reap(std::span<Completion> ended, nanoseconds timeout) {
  if (watched_) event_fd_.drain();
  start();
  const size_t refused = take_refused(ended);
  if (refused > 0) return refused;

  std::array<io_event, 64> events;
  const auto most = static_cast<long>(std::min(ended.size(), events.size()));
  const timespec until{timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
  // What the kernel has not taken yet cannot end.
  const long enough = waiting_.empty() ? std::min<long>(wake_after_, most) : 1;
  const long least = timeout > nanoseconds(0) ? enough : 0;
  const long count = syscall(SYS_io_getevents, context_, least, most, events.data(), &until);
  CHECK(count >= 0 || errno == EINTR, "io_getevents: errno ", errno);
  for (long i = 0; i < count; ++i) {
    ended[static_cast<size_t>(i)] = {static_cast<uint32_t>(events[static_cast<size_t>(i)].data),
                                     static_cast<int32_t>(events[static_cast<size_t>(i)].res)};
  }
  if (count == most) event_fd_.signal();  // there may be more
  return count > 0 ? static_cast<size_t>(count) : 0;
}

size_t LibaioBackend::take_refused(std::span<Completion> ended) {
  const size_t count = std::min(ended.size(), refused_.size());
  std::copy_n(refused_.begin(), count, ended.begin());
  refused_.erase(refused_.begin(), refused_.begin() + static_cast<ptrdiff_t>(count));
  return count;
}

}  // namespace

Result<std::unique_ptr<IoBackend>> make_libaio_backend(uint32_t capacity) {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, capacity, &context) != 0) {
    return errno_status("libaio", errno, errno == EAGAIN ? "raise sysctl fs.aio-max-nr" : "a kernel with CONFIG_AIO");
  }
  auto backend = std::make_unique<LibaioBackend>(capacity, context);
  PENSTOCK_TRY(backend->prepare());
  // A context that can be made may still be forbidden to be asked.
  timespec at_once{};
  io_event event;
  if (syscall(SYS_io_getevents, context, 0L, 1L, &event, &at_once) < 0) return errno_status("libaio", errno);
  return Result<std::unique_ptr<IoBackend>>(std::move(backend));
}

}  // namespace penstock::aio
