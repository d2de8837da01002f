#include "tiering/status.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace penstock {
namespace {

// What the system refuses for lack of room is told from what is wrong with a path, and from what is wrong with the
// machine.
TEST(StatusOfErrno, SaysWhoseFaultItIs) {
  for (int error : {ENOENT, ENOTDIR, EISDIR, EEXIST, ENAMETOOLONG}) {
    EXPECT_EQ(errno_status("open x", error).code(), Code::kUsage) << errno_name(error);
  }
  for (int error : {ENOSPC, EDQUOT, ENOMEM, EFBIG}) {
    EXPECT_EQ(errno_status("open x", error).code(), Code::kDoesNotFit) << errno_name(error);
  }
  for (int error : {EIO, EACCES, EMFILE, EROFS, EINVAL}) {
    EXPECT_EQ(errno_status("open x", error).code(), Code::kEnvironment) << errno_name(error);
  }
}

TEST(StatusOfErrno, NamesTheErrorAndAWayOutWhereThereIsOne) {
  const Status full = errno_status("write y", ENOSPC);
  EXPECT_NE(full.message().find("write y"), std::string::npos) << full.message();
  EXPECT_NE(full.message().find("No space left on device"), std::string::npos) << full.message();
  EXPECT_EQ(full.remedy(), "free some space");
  EXPECT_EQ(errno_status("write y", ENOSPC, "another drive").remedy(), "another drive");
  EXPECT_EQ(errno_status("write y", EINVAL).remedy(), "");
}

}  // namespace
}  // namespace penstock
