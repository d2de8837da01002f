// The wish of a person, or of the system, that the command stop: SIGINT, SIGTERM or SIGHUP. Verbs ask between pieces of
// work and end with the refusal. A second signal ends the process at once; so do fatal ones. In each case the files
// named to remove_at_exit() are removed first.
#pragma once

#include <string>

#include "tiering/status.h"

namespace penstock::tools {

// Installs the handlers. Called once, by main.
void watch_for_interrupts();

bool interrupted();
// A refusal with the code of an interrupted command, or OK when nobody has asked to stop.
Status check_interrupted();

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
