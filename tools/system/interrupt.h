// Requests to stop: SIGINT, SIGTERM or SIGHUP. Verbs check between pieces of work and return the error. A second signal
// ends the process at once, and so does a fatal one. In every case the files named by RemovedAtExit are removed first.
#pragma once

#include <string>

#include "tiering/status.h"

namespace penstock::tools {

// Installs the handlers. Called once, by main.
void watch_for_interrupts();

bool interrupted();
// A refusal with the code of an interrupted command, or OK when nobody has asked to stop.
Status check_interrupted();
// What ends work that leaves nothing.
Status interrupted_unchanged();

// For the time of its life, the first signal ends the process at once: for work that leaves nothing and takes long. One
// at a time.
class EndsWhenInterrupted {
 public:
  // `answer` is what stdout gets then.
  explicit EndsWhenInterrupted(std::string answer);
  ~EndsWhenInterrupted();
  EndsWhenInterrupted(const EndsWhenInterrupted&) = delete;
  EndsWhenInterrupted& operator=(const EndsWhenInterrupted&) = delete;

 private:
  const std::string answer_;
};

// For the time of its life, `path` is removed by whatever ends the process, SIGKILL excepted.
class RemovedAtExit {
 public:
  explicit RemovedAtExit(std::string path);
  ~RemovedAtExit();
  RemovedAtExit(const RemovedAtExit&) = delete;
  RemovedAtExit& operator=(const RemovedAtExit&) = delete;

 private:
  const std::string path_;
  size_t place_;
};

}  // namespace penstock::tools
