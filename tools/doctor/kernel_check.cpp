#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>

#include "tiering/check.h"
#include "tiering/status.h"
#include "tools/doctor/checks.h"

namespace penstock::tools {
namespace {

// Tries to set up a ring; 0, or the errno of the refusal. Later headers than ours name these flags.
int ring_error(uint32_t flags) {
  io_uring_params parameters = {};
  parameters.flags = flags;
  const long ring = syscall(__NR_io_uring_setup, 8, &parameters);
  if (ring < 0) return errno;
  close(static_cast<int>(ring));
  return 0;
}

constexpr uint32_t kCoopTaskrun = 1u << 8;    // 5.19
constexpr uint32_t kSingleIssuer = 1u << 12;  // 6.0
constexpr uint32_t kDeferTaskrun = 1u << 13;  // 6.1
constexpr const char* kFallback = "the engine falls back to libaio: same bytes, about three times the CPU per GB";

Finding io_uring_finding(const SystemFiles& files) {
  const int error = ring_error(0);
  if (error == 0) {
    if (ring_error(kSingleIssuer | kDeferTaskrun) == 0) {
      return {"io_uring", Level::good, "available, with deferred task running", "the fastest engine is used", ""};
    }
    const bool coop = ring_error(kCoopTaskrun) == 0;
    return {"io_uring", Level::note,
            text("available, without deferred task running", coop ? "" : " or cooperative task running"),
            "works at full bandwidth, with a little more CPU per GB", "boot a kernel of 6.1 or newer"};
  }
  const uint64_t disabled = files.read_number("/proc/sys/kernel/io_uring_disabled").value_or(0);
  const std::string found = text("not available: ", errno_name(error), ", kernel.io_uring_disabled is ", disabled);
  if (disabled > 0) {
    return {"io_uring", Level::note, found, kFallback, "sudo sysctl -w kernel.io_uring_disabled=0"};
  }
  if (error == ENOSYS) return {"io_uring", Level::note, found, kFallback, "boot a kernel of 5.15 or newer"};
  return {"io_uring", Level::note, found + " (a container's seccomp profile, most likely)", kFallback,
          "start the container with: docker run --security-opt seccomp=unconfined ..."};
}

Finding libaio_finding(const SystemFiles& files) {
  aio_context_t context = 0;
  const long made = syscall(__NR_io_setup, 64, &context);
  const int error = made < 0 ? errno : 0;
  if (made == 0) syscall(__NR_io_destroy, context);
  const uint64_t most = files.read_number("/proc/sys/fs/aio-max-nr").value_or(0);
  const uint64_t used = files.read_number("/proc/sys/fs/aio-nr").value_or(0);
  const std::string places = text(used, " of ", most, " of the system's request slots in use");
  if (error == 0) return {"libaio", Level::good, places, "can stand in for io_uring", ""};
  return {"libaio", Level::note, text("not available: ", errno_name(error), ", ", places),
          "without io_uring the engine falls back to a thread pool",
          error == EAGAIN ? text("sudo sysctl -w fs.aio-max-nr=", std::max<uint64_t>(2 * most, 1048576)) : ""};
}

Finding seccomp_finding(const SystemFiles& files) {
  const std::string mode = files.value_of("/proc/self/status", "Seccomp:").value_or("unknown");
  if (mode == "2") {
    return {"seccomp", Level::note, "a filter is active",
            "it may refuse some system calls; the other checks show which", ""};
  }
  return {"seccomp", Level::good, mode == "0" ? "no filter" : "mode " + mode, "", ""};
}

}  // namespace

Findings check_kernel(const SystemFiles& files) {
  utsname name = {};
  uname(&name);
  return {{"kernel", Level::good, text(name.sysname, " ", name.release, " ", name.machine), "", ""},
          io_uring_finding(files),
          libaio_finding(files),
          seccomp_finding(files)};
}

}  // namespace penstock::tools
