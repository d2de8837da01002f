#include "aio/make_io_engine.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <iterator>

namespace penstock::aio {
namespace {

// As containers do, for this process: the kernel's answer to io_uring_setup is EPERM.
bool refuse_io_uring() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(MakeIoEngine, SaysWhyNothingBetterRuns) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (!make_io_engine(IoEngineChoice::libaio).ok()) GTEST_SKIP() << "no libaio here";
  const auto make_without = [] {
    if (!refuse_io_uring()) _exit(1);
    std::fprintf(stderr, "%s\n", make_io_engine().value().reason.c_str());
    _exit(0);
  };
  EXPECT_EXIT(make_without(), testing::ExitedWithCode(0), "^libaio.*; io_uring: EPERM");
}

}  // namespace
}  // namespace penstock::aio
