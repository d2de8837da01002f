#include "aio/thread_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "tiering/check.h"

namespace penstock::aio {

int32_t move_now(const Piece& piece) {
  const int fd = piece.file->descriptor();
  const auto offset = static_cast<off_t>(piece.offset_bytes);
  ssize_t moved = 0;
  switch (piece.operation) {
    case Operation::read:
      moved = pread(fd, piece.data, piece.length_bytes, offset);
      break;
    case Operation::write:
      moved = pwrite(fd, piece.data, piece.length_bytes, offset);
      break;
    case Operation::flush:
      moved = fdatasync(fd);
      break;
  }
  return moved >= 0 ? static_cast<int32_t>(moved) : -errno;
}

Result<std::unique_ptr<IoBackend>> ThreadBackend::make(uint32_t threads, uint32_t capacity) {
  std::unique_ptr<ThreadBackend> backend(new ThreadBackend(capacity));
  try {
    while (backend->threads_.size() < threads) backend->threads_.emplace_back([&made = *backend] { made.work(); });
  } catch (const std::system_error& error) {
    return thread_status(text("start I/O threads: ", backend->threads_.size(), " of ", threads), error.code().value());
  }
  return Result<std::unique_ptr<IoBackend>>(std::move(backend));
}

ThreadBackend::~ThreadBackend() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_arrived_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadBackend::submit(const Piece& piece) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(piece);
  }
  work_arrived_.notify_one();
}

size_t ThreadBackend::reap(std::span<Completion> ended, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout > std::chrono::nanoseconds(0)) {
    piece_ended_.wait_for(lock, timeout, [&] { return ended_.size() >= wake_after_; });
  }
  const size_t count = std::min(ended.size(), ended_.size());
  std::copy_n(ended_.begin(), count, ended.begin());
  ended_.erase(ended_.begin(), ended_.begin() + static_cast<ptrdiff_t>(count));
  if (ended_.empty()) event_fd_.drain();
  return count;
}

void ThreadBackend::wake_after(uint32_t pieces) {
  std::lock_guard lock(mutex_);
  wake_after_ = pieces;
}

Result<int> ThreadBackend::completion_fd() {
  std::lock_guard lock(mutex_);
  return event_fd_.make();
}

std::string ThreadBackend::description() const { return text("threads (", threads_.size(), " with pread and pwrite)"); }

void ThreadBackend::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_arrived_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Piece piece = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    const int32_t result = move_now(piece);
    lock.lock();
    ended_.push_back({piece.tag, result});
    event_fd_.signal();
    if (ended_.size() >= wake_after_) piece_ended_.notify_one();
  }
}

}  // namespace penstock::aio
