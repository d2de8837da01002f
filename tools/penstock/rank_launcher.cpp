#include "tools/penstock/rank_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <random>

#include "tools/system/interrupt.h"

namespace penstock::tools {
namespace {

using Clock = std::chrono::steady_clock;

// How long the others have, once one has ended badly: they look for one another every 0.1 s, between two passes.
constexpr std::chrono::seconds kGrace{5};
// A rank that does not go on for so long is not waited for: before all have met, nobody else would notice.
constexpr std::chrono::seconds kStoppedAtMost{20};
constexpr int kLooksEveryMs = 100;
constexpr size_t kSaidMost = 64 * 1024;
constexpr const char *kPrefix = "penstock: ", *kRemedyPrefix = "try: ";  // of a refusal, on standard error
constexpr const char* kStartAgain = "start the same command again: it goes on from the last step that all ranks have";

struct Rank {
  pid_t process = -1;
  int out = -1;      // what it says on standard error; none of rank 0
  std::string said;  // the end of it
  bool has_ended = false;
  int signal = 0, code = 0;
  int sent = 0;                                      // the last signal that the launcher sent it
  std::optional<Clock::time_point> stopped_at = {};  // by a signal, and has not gone on since
  bool stayed_stopped = false;

  bool ended_badly() const { return has_ended && (signal != 0 || code != 0); }
  // For another's end, or for an interruption, not by itself.
  bool was_ended() const { return signal != 0 && signal == sent; }
};

std::string drawn_name() {
  std::random_device random;
  return text("penstock-", getpid(), "-", random());
}

// Ctrl-Z. A handler has no other way to reach anything than what is global.
std::atomic<bool> asked_to_pause{false};

void watch_for_pauses() {
  struct sigaction action = {};
  action.sa_handler = [](int) { asked_to_pause = true; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGTSTP, &action, nullptr);
}

uint32_t processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<uint32_t>(CPU_COUNT(&set)) : 1;
}

class Launch {
 public:
  ~Launch() {
    for (Rank& rank : ranks_) {
      if (!rank.has_ended && rank.process > 0) {
        kill(rank.process, SIGKILL);
        waitpid(rank.process, nullptr, 0);
      }
      if (rank.out >= 0) close(rank.out);
    }
  }

  Status start(uint32_t ranks, const std::vector<std::string>& command) {
    const std::string run = drawn_name();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      PENSTOCK_TRY(start_one(
          command,
          {text("RANK=", rank), text("WORLD_SIZE=", ranks), text("LOCAL_RANK=", rank), text("LOCAL_WORLD_SIZE=", ranks),
           "MASTER_ADDR=127.0.0.1", "MASTER_PORT=0", text("TORCHELASTIC_RUN_ID=", run), "TORCHELASTIC_RESTART_COUNT=0"},
          std::max(1u, processors() / ranks)));
    }
    return Status();
  }

  void wait() {
    Clock::time_point first_bad{};
    while (true) {
      read_for(kLooksEveryMs);
      reap();
      if (asked_to_pause.exchange(false)) pause();
      give_up_stopped();
      const bool all = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.has_ended; });
      if (all) return;
      if (interrupted() && !has_passed_on_) {
        has_passed_on_ = true;
        kill_all(SIGTERM);
      }
      const bool is_bad =
          std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended_badly(); });
      if (!is_bad) continue;
      if (first_bad == Clock::time_point()) first_bad = Clock::now();
      if (Clock::now() - first_bad > kGrace) kill_all(SIGKILL);
    }
  }

  Result<int> outcome() const {
    const Rank& first = ranks_.front();
    const bool all_well =
        std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended_badly(); });
    if (all_well) return 0;
    if (first.signal == 0 && first.code != 0) return first.code;
    if (has_passed_on_ && std::ranges::all_of(ranks_, [](const Rank& rank) {
          return rank.was_ended() || rank.code == 0 || rank.code == static_cast<int>(Code::kInterrupted);
        })) {
      return Status(Code::kInterrupted, "interrupted", kStartAgain);
    }
    // Of those that lived long enough to say what has happened, the first.
    for (uint32_t number = 1; number < ranks_.size(); ++number) {
      const Rank& rank = ranks_[number];
      const std::string refusal = said_behind(kPrefix, rank), remedy = said_behind(kRemedyPrefix, rank);
      if (refusal.empty()) continue;
      const bool names_a_rank = refusal.starts_with("rank ");
      return Status(static_cast<Code>(rank.code), names_a_rank ? refusal : text("rank ", number, ": ", refusal),
                    remedy.empty() ? kStartAgain : remedy);
    }
    // Of those that ended by themselves, the first in time.
    const Rank* blamed = nullptr;
    for (const size_t number : ended_) {
      const Rank& rank = ranks_[number];
      if (rank.ended_badly() && (blamed == nullptr || (blamed->was_ended() && !rank.was_ended()))) blamed = &rank;
    }
    return Status(
        Code::kEnvironment,
        text("rank ", blamed - ranks_.data(), " ", end_of(*blamed), blamed->said.empty() ? "" : ": ", blamed->said),
        kStartAgain);
  }

 private:
  Status start_one(const std::vector<std::string>& command, std::vector<std::string> variables, uint32_t threads) {
    const bool is_first = ranks_.empty();
    int ends[2] = {-1, -1};
    if (!is_first && pipe2(ends, O_CLOEXEC) != 0) return errno_status("--ranks: a pipe", errno);
    const pid_t launcher = getpid();
    const pid_t process = fork();
    if (process < 0) return errno_status(text("--ranks: start rank ", ranks_.size()), errno);
    if (process == 0) {
      // Nothing outlives the launcher, and what a terminal sends comes once, from there.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);
      setpgid(0, 0);
      const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
      dup2(nothing, STDIN_FILENO);
      if (!is_first) {
        dup2(nothing, STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
      }
      for (const std::string& variable : variables) {
        const size_t equals = variable.find('=');
        setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, /*overwrite=*/1);
      }
      setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), /*overwrite=*/0);
      std::vector<std::string> words = command;
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(arguments.front(), arguments.data());
      _exit(127);
    }
    if (!is_first) close(ends[1]);
    ranks_.push_back({.process = process, .out = ends[0], .said = {}});
    return Status();
  }

  void read_for(int milliseconds) {
    std::vector<pollfd> sources;
    std::vector<Rank*> of;
    for (Rank& rank : ranks_) {
      if (rank.out < 0) continue;
      sources.push_back({rank.out, POLLIN, 0});
      of.push_back(&rank);
    }
    poll(sources.data(), sources.size(), milliseconds);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].revents != 0) read_from(*of[i]);
    }
  }

  static bool read_from(Rank& rank) {
    char bytes[4096];
    const ssize_t got = read(rank.out, bytes, sizeof bytes);
    if (got > 0) {
      rank.said.append(bytes, static_cast<size_t>(got));
      if (rank.said.size() > kSaidMost) rank.said.erase(0, rank.said.size() - kSaidMost);
      return true;
    }
    if (got < 0 && errno == EINTR) return true;
    close(rank.out);
    rank.out = -1;
    return false;
  }

  void reap() {
    for (size_t number = 0; number < ranks_.size(); ++number) {
      Rank& rank = ranks_[number];
      int how = 0;
      if (rank.has_ended || waitpid(rank.process, &how, WNOHANG | WUNTRACED | WCONTINUED) != rank.process) continue;
      if (WIFSTOPPED(how)) {
        rank.stopped_at = Clock::now();
        continue;
      }
      rank.stopped_at.reset();
      if (WIFCONTINUED(how)) continue;
      rank.has_ended = true;
      ended_.push_back(number);
      rank.signal = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
      rank.code = WIFEXITED(how) ? WEXITSTATUS(how) : 0;
      while (rank.out >= 0 && read_from(rank)) continue;
    }
  }

  // The ranks are no part of the terminal's job, so that the launcher passes on what stops that, and what continues it.
  void pause() {
    const auto tell_all = [this](int signal) {
      for (const Rank& rank : ranks_) {
        if (!rank.has_ended) kill(rank.process, signal);
      }
    };
    tell_all(SIGSTOP);
    kill(getpid(), SIGSTOP);
    tell_all(SIGCONT);
    for (Rank& rank : ranks_) rank.stopped_at.reset();
  }

  void give_up_stopped() {
    for (Rank& rank : ranks_) {
      if (!rank.stopped_at || Clock::now() - *rank.stopped_at <= kStoppedAtMost) continue;
      rank.stopped_at.reset();
      rank.stayed_stopped = true;
      kill(rank.process, SIGKILL);
    }
  }

  static std::string end_of(const Rank& rank) {
    if (rank.stayed_stopped)
      return text("was stopped by a signal, and did not go on for ", kStoppedAtMost.count(), " s");
    return rank.signal != 0 ? text("was killed by signal ", rank.signal) : text("ended with ", rank.code);
  }

  void kill_all(int signal) {
    for (Rank& rank : ranks_) {
      if (rank.has_ended) continue;
      rank.sent = signal;
      kill(rank.process, signal);
    }
  }

  // The rest of the last line that begins so, of one that refused.
  static std::string said_behind(const std::string& prefix, const Rank& rank) {
    if (rank.signal != 0 || rank.code == 0) return "";
    const size_t at = rank.said.rfind(prefix);
    if (at == std::string::npos) return "";
    const size_t begin = at + prefix.size();
    return rank.said.substr(begin, rank.said.find('\n', begin) - begin);
  }

  std::vector<Rank> ranks_;
  std::vector<size_t> ended_;  // numbers of ranks, in the order in which they ended
  bool has_passed_on_ = false;
};

}  // namespace

Result<int> run_ranks(uint32_t ranks, const std::vector<std::string>& command) {
  watch_for_pauses();
  Launch launch;
  PENSTOCK_TRY(launch.start(ranks, command));
  launch.wait();
  return launch.outcome();
}

}  // namespace penstock::tools
