#include "tools/system/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

extern char** environ;

namespace penstock::tools {
namespace {

constexpr size_t kErrorTailBytes = 300;

struct Pipe {
  int ends[2] = {-1, -1};
  ~Pipe() {
    for (int end : ends) {
      if (end >= 0) close(end);
    }
  }
  void close_writer() {
    close(ends[1]);
    ends[1] = -1;
  }
};

// Reads until both have ended.
void drain(const Pipe& out, const Pipe& err, std::string& printed, std::string& errors) {
  std::array<pollfd, 2> sources{{{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}}};
  std::array<char, 65536> chunk;
  while (sources[0].fd >= 0 || sources[1].fd >= 0) {
    if (poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR) return;
    for (pollfd& source : sources) {
      if (source.fd < 0 || source.revents == 0) continue;
      const ssize_t got = read(source.fd, chunk.data(), chunk.size());
      if (got > 0) (&source == &sources[0] ? printed : errors).append(chunk.data(), static_cast<size_t>(got));
      if (got == 0 || (got < 0 && errno != EINTR)) source.fd = -1;
    }
  }
}

}  // namespace

Result<std::string> run_program(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);

  Pipe out, err;
  if (pipe2(out.ends, O_CLOEXEC) != 0 || pipe2(err.ends, O_CLOEXEC) != 0) return errno_status("make pipe", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int refused = posix_spawnp(&child, words.front().c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (refused != 0) return errno_status("run program: " + words.front(), refused, "install " + words.front());

  out.close_writer();
  err.close_writer();
  std::string printed, errors;
  drain(out, err, printed, errors);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return printed;
  if (errors.empty()) errors = printed.substr(0, printed.find('\n'));  // some say it there
  if (errors.size() > kErrorTailBytes) errors.erase(0, errors.size() - kErrorTailBytes);
  while (!errors.empty() && errors.back() == '\n') errors.pop_back();
  const std::string how =
      WIFSIGNALED(status) ? text("signal ", WTERMSIG(status)) : text("exit code ", WEXITSTATUS(status));
  return Status(Code::kEnvironment,
                text("run program: ", words.front(), ": ", how, errors.empty() ? "" : ": ", errors));
}

}  // namespace penstock::tools
