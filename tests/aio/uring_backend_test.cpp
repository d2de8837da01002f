#include "aio/uring_backend.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/aio/test_files.h"

namespace penstock::aio {
namespace {

TEST(UringBackend, SaysWhyMemoryIsNotRegistered) {
  auto ring = make_uring_backend();
  if (!ring.ok()) GTEST_SKIP() << ring.status().message();
  const OwnMemory good(2 * kMiB);
  if ((*ring)->register_memory(good.bytes()) == 0) GTEST_SKIP() << (*ring)->description();
  // Addresses without memory.
  void* nothing = mmap(nullptr, 2 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  EXPECT_EQ((*ring)->register_memory({static_cast<std::byte*>(nothing), 2 * kMiB}), 0u);
  EXPECT_NE((*ring)->description().find(", 2.00 MiB not registered: EFAULT"), std::string::npos)
      << (*ring)->description();
  munmap(nothing, 2 * kMiB);
}

}  // namespace
}  // namespace penstock::aio
