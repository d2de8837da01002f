// RankProcesses: a program started once for each rank, as torchrun would, and how each of them ended.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "tiering/check.h"
#include "tiering/status.h"

namespace penstock::test {

// The worker that the build names, or a mutant of it.
inline std::string worker_or_mutant(const char* worker) {
  const char* mutant = std::getenv("PENSTOCK_RANK_MUTANT");
  return mutant != nullptr ? mutant : worker;
}

struct RankEnd {
  int signal = 0;  // that ended it; 0: none
  int code = 0;
  std::string said;  // on standard output
  double after_s = 0;
};

class RankProcesses {
 public:
  // `command`: of every rank. `environment`: "NAME=VALUE", besides this process's.
  RankProcesses(uint32_t ranks, const std::vector<std::string>& command,
                const std::vector<std::string>& environment = {}) {
    static uint32_t runs = 0;
    // Never bound: the name of a meeting, which no other test has.
    port_ = text((static_cast<uint32_t>(::getpid()) % 4'000'000) * 1000 + ++runs % 1000);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      // What is asked for comes first, and is found first.
      std::vector<std::string> variables = environment;
      variables.insert(variables.end(),
                       {text("RANK=", rank), text("WORLD_SIZE=", ranks), text("LOCAL_WORLD_SIZE=", ranks),
                        "MASTER_ADDR=127.0.0.1", text("MASTER_PORT=", port_)});
      processes_.push_back(start(command, variables));
    }
  }
  // Nothing outlives the test.
  ~RankProcesses() {
    for (Process& process : processes_) {
      if (process.reaped) continue;
      ::kill(process.id, SIGKILL);
      ::waitpid(process.id, nullptr, 0);
    }
    for (const Process& process : processes_) ::close(process.out);
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  const std::string& port() const { return port_; }
  void kill(uint32_t rank, int signal = SIGKILL) const { ::kill(processes_[rank].id, signal); }
  const std::string& said(uint32_t rank) const { return processes_[rank].end.said; }

  // Reads what they say until `enough` holds, or all have ended. Whether it held.
  template <typename Enough>
  bool read_until(Enough enough) {
    while (!enough()) {
      std::vector<pollfd> sources;
      std::vector<Process*> of;
      for (Process& process : processes_) {
        if (process.ended_saying) continue;
        sources.push_back({process.out, POLLIN, 0});
        of.push_back(&process);
      }
      if (sources.empty()) return enough();
      ::poll(sources.data(), sources.size(), -1);
      for (size_t i = 0; i < sources.size(); ++i) {
        if (sources[i].revents != 0) read_from(*of[i]);
      }
    }
    return true;
  }

  // Waits for all of them, but for those in `stopped`, which are killed when all others have ended.
  std::vector<RankEnd> wait(const std::vector<uint32_t>& stopped = {}) {
    auto is_stopped = [&](const Process& process) {
      for (uint32_t rank : stopped) {
        if (&processes_[rank] == &process) return true;
      }
      return false;
    };
    read_until([&] {
      for (const Process& process : processes_) {
        if (!process.ended_saying && !is_stopped(process)) return false;
      }
      return true;
    });
    for (uint32_t rank : stopped) kill(rank);
    read_until([] { return false; });
    std::vector<RankEnd> ends;
    for (Process& process : processes_) {
      int how = 0;
      ::waitpid(process.id, &how, 0);
      process.reaped = true;
      process.end.signal = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
      process.end.code = WIFEXITED(how) ? WEXITSTATUS(how) : 0;
      ends.push_back(process.end);
    }
    return ends;
  }

 private:
  struct Process {
    pid_t id = 0;
    int out = -1;
    bool ended_saying = false, reaped = false;
    std::chrono::steady_clock::time_point started;
    RankEnd end;
  };

  static Process start(std::vector<std::string> command, std::vector<std::string> variables) {
    for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
    auto pointers = [](std::vector<std::string>& words) {
      std::vector<char*> of;
      for (std::string& word : words) of.push_back(word.data());
      of.push_back(nullptr);
      return of;
    };
    std::vector<char*> arguments = pointers(command), environment = pointers(variables);
    int ends[2];
    CHECK(::pipe2(ends, O_CLOEXEC) == 0);
    Process process;
    process.started = std::chrono::steady_clock::now();
    process.id = ::fork();
    if (process.id == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::execve(arguments[0], arguments.data(), environment.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    process.out = ends[0];
    return process;
  }
  static void read_from(Process& process) {
    char bytes[4096];
    const ssize_t got = ::read(process.out, bytes, sizeof bytes);
    if (got > 0) {
      process.end.said.append(bytes, static_cast<size_t>(got));
      return;
    }
    process.ended_saying = true;
    process.end.after_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - process.started).count();
  }

  std::string port_;
  std::vector<Process> processes_;
};

}  // namespace penstock::test
