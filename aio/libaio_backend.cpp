#include "aio/libaio_backend.h"

#if !defined(PENSTOCK_HAVE_LIBAIO)

namespace penstock::aio {

Result<std::unique_ptr<IoBackend>> make_libaio_backend(uint32_t) {
  return Status(Code::kEnvironment, "libaio: not part of this build", "install libaio-dev and build again");
}

}  // namespace penstock::aio

#else

#include <libaio.h>

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
  LibaioBackend(uint32_t capacity, io_context_t context) : capacity_(capacity), context_(context), blocks_(capacity) {}
  ~LibaioBackend() override { io_destroy(context_); }

  uint32_t capacity() const override { return capacity_; }
  void submit(const Piece& piece) override;
  void start() override;
  size_t reap(std::span<Completion> ended, nanoseconds timeout) override;
  void wake_after(uint32_t pieces) override { wake_after_ = pieces; }
  Result<int> completion_fd() override;
  // Every piece names the descriptor, because one that is under way cannot be told to signal later.
  Status prepare_event() { return event_fd_.make().status(); }
  std::string description() const override { return "libaio"; }

 private:
  size_t take_refused(std::span<Completion> ended);

  const uint32_t capacity_;
  const io_context_t context_;
  uint32_t wake_after_ = 1;
  std::vector<iocb> blocks_;        // by tag
  std::vector<iocb*> waiting_;      // not with the kernel yet
  std::deque<Completion> refused_;  // the kernel would not take them
  EventFd event_fd_;
  bool watched_ = false;  // completion_fd() was called
};

void prepare(iocb& block, const Piece& piece) {
  const int fd = piece.file->descriptor();
  const auto offset = static_cast<long long>(piece.offset_bytes);
  switch (piece.operation) {
    case Operation::read:
      return io_prep_pread(&block, fd, piece.data, piece.length_bytes, offset);
    case Operation::write:
      return io_prep_pwrite(&block, fd, piece.data, piece.length_bytes, offset);
    case Operation::flush:
      return io_prep_fdsync(&block, fd);
  }
}

// libaio hands the tag back as a pointer.
void* pointer_of(uint32_t tag) { return reinterpret_cast<void*>(uintptr_t{tag}); }
uint32_t tag_of(const void* pointer) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer)); }

void LibaioBackend::submit(const Piece& piece) {
  CHECK(piece.tag < capacity_, "tag ", piece.tag, " of ", capacity_);
  iocb& block = blocks_[piece.tag];
  prepare(block, piece);
  block.data = pointer_of(piece.tag);
  io_set_eventfd(&block, event_fd_.fd());
  waiting_.push_back(&block);
}

void LibaioBackend::start() {
  size_t begin = 0;
  while (begin < waiting_.size()) {
    const int taken = io_submit(context_, static_cast<long>(waiting_.size() - begin), &waiting_[begin]);
    if (taken > 0) {
      begin += static_cast<size_t>(taken);
    } else if (taken == -EAGAIN) {
      break;  // full for now; the next reap() tries again
    } else if (taken < 0 && taken != -EINTR) {
      refused_.push_back({tag_of(waiting_[begin]->data), taken});
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
  timespec until{timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
  // Pieces that the kernel has not taken cannot end, so do not wait for several.
  const long enough = waiting_.empty() ? std::min<long>(wake_after_, most) : 1;
  const long least = timeout > nanoseconds(0) ? enough : 0;
  const int count = io_getevents(context_, least, most, events.data(), &until);
  CHECK(count >= 0 || count == -EINTR, "io_getevents: ", count);
  for (int i = 0; i < count; ++i) {
    const io_event& event = events[static_cast<size_t>(i)];
    ended[static_cast<size_t>(i)] = {tag_of(event.data), static_cast<int32_t>(event.res)};
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
  io_context_t context = nullptr;
  if (const int refused = io_setup(static_cast<int>(capacity), &context); refused != 0) {
    return errno_status("libaio", -refused,
                        refused == -EAGAIN ? "raise sysctl fs.aio-max-nr" : "a kernel with CONFIG_AIO");
  }
  auto backend = std::make_unique<LibaioBackend>(capacity, context);
  PENSTOCK_TRY(backend->prepare_event());
  // A container may allow io_setup and forbid io_getevents. With a timeout of zero the library would not call it.
  timespec moment{0, 1};
  io_event event;
  if (const int refused = io_getevents(context, 0, 1, &event, &moment); refused < 0) {
    return errno_status("libaio", -refused);
  }
  return Result<std::unique_ptr<IoBackend>>(std::move(backend));
}

}  // namespace penstock::aio

#endif
