#include "runtime/engine/mailbox.h"

namespace penstock::engine {

Result<std::unique_ptr<Mailbox>> Mailbox::make() {
  auto mailbox = std::unique_ptr<Mailbox>(new Mailbox());
  PENSTOCK_TRY(mailbox->wakes_.make().status());
  mailbox->wakes_.drain();
  return mailbox;
}

void Mailbox::post(Message message) {
  bool was_empty;
  {
    std::lock_guard lock(mutex_);
    was_empty = waiting_.empty();
    waiting_.push_back(std::move(message));
  }
  if (was_empty) wakes_.signal();
}

size_t Mailbox::run_all() {
  {
    std::lock_guard lock(mutex_);
    running_.swap(waiting_);
    if (running_.empty()) return 0;
    wakes_.drain();
  }
  for (Message& message : running_) message();
  size_t ran = running_.size();
  running_.clear();
  return ran;
}

}  // namespace penstock::engine
