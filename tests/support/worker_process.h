// killed(): a process that is killed with SIGKILL at a moment of the test's choice, and what it had said by then.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tiering/check.h"
#include "tiering/status.h"

namespace penstock {

struct Said {
  std::string line;
  std::chrono::steady_clock::time_point when;
};

// Runs `command`, and kills it `and_then` after `enough` holds of the lines that it has written so far.
inline std::vector<Said> killed(std::vector<std::string> command,
                                const std::function<bool(const std::vector<Said>&)>& enough,
                                std::chrono::microseconds and_then) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  FILE* out = fdopen(ends[0], "r");
  std::vector<Said> said;
  char line[64];
  auto read_line = [&] {
    if (!std::fgets(line, sizeof(line), out)) return false;
    std::string words = line;
    if (words.ends_with('\n')) words.pop_back();
    said.push_back({words, std::chrono::steady_clock::now()});
    return true;
  };
  while (!enough(said) && read_line()) {
  }
  std::this_thread::sleep_for(and_then);
  kill(child, SIGKILL);
  while (read_line()) {
  }
  std::fclose(out);
  int how = 0;
  waitpid(child, &how, 0);
  EXPECT_TRUE(WIFSIGNALED(how) || WEXITSTATUS(how) == 0) << command[1] << " ended by itself with " << WEXITSTATUS(how);
  return said;
}

// Whether a store that does not open is one whose creation a kill cut short: whatever had come of its files by then.
inline bool was_never_created(const Status& opened) {
  const std::string& why = opened.message();
  return why.find("its creation was interrupted") != std::string::npos || why.find("missing") != std::string::npos;
}

}  // namespace penstock
