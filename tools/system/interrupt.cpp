#include "tools/system/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <string_view>
#include <utility>

namespace penstock::tools {
namespace {

// Signal handlers have no other way to reach anything than what is global.
constexpr size_t kPlaces = 64;
std::array<std::atomic<const char*>, kPlaces> removed_at_exit{};
std::atomic<int> signals_seen{0};
std::atomic<const std::string*> ends_with{nullptr};  // the answer, where the first signal ends the process
constexpr char kUnchanged[] = "interrupted: nothing was changed";
static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<const std::string*>::is_always_lock_free);

void remove_files() {
  for (const auto& place : removed_at_exit) {
    if (const char* path = place.load()) unlink(path);
  }
}

// As a signal handler may. There is nobody left to be told that it could not be.
void say(int descriptor, std::string_view words) { static_cast<void>(!write(descriptor, words.data(), words.size())); }

void on_request(int) {
  const bool is_first = signals_seen.fetch_add(1) == 0;
  const std::string* answer = ends_with.load();
  if (is_first && answer == nullptr) return;
  if (is_first) {
    say(STDOUT_FILENO, *answer);
    say(STDERR_FILENO, "\npenstock: ");
    say(STDERR_FILENO, kUnchanged);
    say(STDERR_FILENO, "\n");
  }
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

Status interrupted_unchanged() { return Status(Code::kInterrupted, kUnchanged); }

EndsWhenInterrupted::EndsWhenInterrupted(std::string answer) : answer_(std::move(answer)) { ends_with = &answer_; }
EndsWhenInterrupted::~EndsWhenInterrupted() { ends_with = nullptr; }

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
