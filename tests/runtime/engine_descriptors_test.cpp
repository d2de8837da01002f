// An engine for which the system has too few descriptors left says so, whichever of its parts did not get one.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "tests/aio/test_files.h"
#include "tests/support/engine_world.h"
#include "tests/support/instrumented.h"

namespace penstock::engine {
namespace {

// For its life this process may open so many descriptors more.
class DescriptorsLeft {
 public:
  explicit DescriptorsLeft(int count) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(STDERR_FILENO);
    close(next);
    rlimit less = before_;
    less.rlim_cur = std::min<rlim_t>(before_.rlim_cur, static_cast<rlim_t>(next + count));
    setrlimit(RLIMIT_NOFILE, &less);
  }
  ~DescriptorsLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class EngineDescriptors : public testing::TestWithParam<aio::IoEngineChoice> {};

TEST_P(EngineDescriptors, TooFewEndInASentence) {
  if (Status made = aio::make_io_engine(GetParam()).status(); !made.ok()) GTEST_SKIP() << made.message();
  if (test::kStride > 1) GTEST_SKIP() << "a sanitizer asks through a pipe whether an object is one";
  aio::ScratchFolder scratch;
  EngineWorld world(17, 1);
  world.options.drives = direct_drives({scratch.path()}, GetParam());
  ASSERT_TRUE(world.create().ok());
  constexpr int kEnough = 64;
  int refused = 0;
  for (int left = 0; left < kEnough; ++left) {
    SCOPED_TRACE(testing::Message() << left << " descriptors left");
    DescriptorsLeft limit(left);
    Result<std::unique_ptr<Engine>> engine = Engine::open(world.options);
    if (!engine.ok()) {
      EXPECT_NE(engine.status().message().find("EMFILE"), std::string::npos) << engine.status().message();
      EXPECT_NE(engine.status().remedy().find("ulimit -n"), std::string::npos) << engine.status().remedy();
      ++refused;
      continue;
    }
    EXPECT_TRUE(world.step(**engine, 0.001f).ok());
    EXPECT_TRUE((*engine)->settle().ok());
    break;
  }
  EXPECT_GT(refused, 1) << "io_uring's library takes more than it was left";
  EXPECT_LT(refused, kEnough);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineDescriptors,
                         testing::Values(aio::IoEngineChoice::io_uring, aio::IoEngineChoice::libaio,
                                         aio::IoEngineChoice::threads),
                         [](const auto& choice) { return std::string(aio::name_of(choice.param)); });

}  // namespace
}  // namespace penstock::engine
