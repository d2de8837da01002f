#include "runtime/engine/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace penstock::engine {

Result<std::unique_ptr<Mailbox>> Mailbox::make() {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return errno_status("eventfd for messages", errno);
  return std::unique_ptr<Mailbox>(new Mailbox(fd));
}

Mailbox::~Mailbox() { close(fd_); }

void Mailbox::post(Message message) {
  bool was_empty;
  {
    std::lock_guard lock(mutex_);
    was_empty = waiting_.empty();
    waiting_.push_back(std::move(message));
  }
  if (was_empty) {
    uint64_t one = 1;
    while (write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
}

size_t Mailbox::run_all() {
  {
    std::lock_guard lock(mutex_);
    running_.swap(waiting_);
    if (running_.empty()) return 0;
    uint64_t count;
    while (read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
    }
  }
  for (Message& message : running_) message();
  size_t ran = running_.size();
  running_.clear();
  return ran;
}

}  // namespace penstock::engine
