#include "tools/system/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

namespace penstock::tools {
namespace {

// Signal handlers have no other way to reach anything than what is global.
constexpr size_t kPlaces = 64;
std::array<std::atomic<const char*>, kPlaces> removed_at_exit{};
std::atomic<int> signals_seen{0};
std::atomic<bool> ends_at_first{false};
static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void remove_files() {
  for (const auto& place : removed_at_exit) {
    if (const char* path = place.load()) unlink(path);
  }
}

void on_request(int) {
  const bool is_first = signals_seen.fetch_add(1) == 0;
  if (is_first && !ends_at_first.load()) return;
  constexpr char kSaid[] = "\npenstock: interrupted: nothing was changed\n";
  if (is_first) static_cast<void>(!write(STDERR_FILENO, kSaid, sizeof kSaid - 1));
  remove_files();
  _exit(static_cast<int>(Code::kInterrupted));
}

void on_fatal(int signal) {
  remove_files();
  raise(signal);  // the default action, restored by SA_RESETHAND
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void watch_for_interrupts() {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) handle(signal, on_request, SA_RESTART);
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGQUIT, SIGXCPU}) {
    handle(signal, on_fatal, static_cast<int>(SA_RESETHAND | SA_NODEFER));
  }
  // Whoever writes is told by errno, and says more.
  for (int signal : {SIGPIPE, SIGXFSZ}) handle(signal, SIG_IGN, 0);
}

bool interrupted() { return signals_seen.load(std::memory_order_relaxed) > 0; }

Status check_interrupted() {
  if (!interrupted()) return {};
  return Status(Code::kInterrupted, "interrupted: unfinished files are removed",
                "the same command starts again from the beginning");
}

EndsWhenInterrupted::EndsWhenInterrupted() { ends_at_first = true; }
EndsWhenInterrupted::~EndsWhenInterrupted() { ends_at_first = false; }

RemovedAtExit::RemovedAtExit(std::string path) : path_(std::move(path)) {
  for (place_ = 0; place_ < kPlaces; ++place_) {
    const char* nothing = nullptr;
    if (removed_at_exit[place_].compare_exchange_strong(nothing, path_.c_str())) return;
  }
  CHECK(false, "more than ", kPlaces, " scratch files at once");
}

RemovedAtExit::~RemovedAtExit() {
  unlink(path_.c_str());
  removed_at_exit[place_] = nullptr;
}

}  // namespace penstock::tools
