#include "bench/support/own_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace penstock::bench {

int in_own_process(const std::string& bench, const std::function<Status()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const Status status = body();
    if (!status.ok()) {
      std::fprintf(stderr, "penstock: bench %s: %s\ntry: %s\n", bench.c_str(), status.message().c_str(),
                   status.remedy().c_str());
    }
    std::fflush(nullptr);
    _exit(static_cast<int>(status.code()));
  }
  int state = 0;
  if (child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state)) return WEXITSTATUS(state);
  std::fprintf(stderr, "penstock: bench %s: a case's process ended by signal %d\n", bench.c_str(), WTERMSIG(state));
  return static_cast<int>(Code::kEnvironment);
}

void forget_resident_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace penstock::bench
