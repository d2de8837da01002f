#include "runtime/engine/kept_steps.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/aio/test_files.h"

namespace penstock::engine {
namespace {

// A crash may come between two drives' marks, and inside one of them.
TEST(KeptSteps, GoBackToWhatIsMarkedAlikeOnEveryDriveAlone) {
  aio::ScratchFolder scratch;
  const std::vector<std::string> folders{scratch / "a", scratch / "b"};
  for (const std::string& folder : folders) std::filesystem::create_directories(folder + "/kept");
  const KeptSteps both(folders), second({folders[1]});
  EXPECT_EQ(both.marked_rollback(), std::nullopt);
  ASSERT_TRUE(both.mark_rollback(4).ok());
  EXPECT_EQ(both.marked_rollback(), 4u);
  ASSERT_TRUE(second.mark_rollback(2).ok());
  EXPECT_EQ(both.marked_rollback(), std::nullopt) << "step 4 on one drive, step 2 on the other";
  ASSERT_TRUE(second.unmark_rollback().ok());
  EXPECT_EQ(both.marked_rollback(), std::nullopt) << "step 4 on one drive";
  std::ofstream(folders[1] + "/kept/rollback") << "4";
  EXPECT_EQ(both.marked_rollback(), std::nullopt) << "a line without its end";
  ASSERT_TRUE(second.mark_rollback(4).ok());
  EXPECT_EQ(both.marked_rollback(), 4u);
  ASSERT_TRUE(both.unmark_rollback().ok());
  EXPECT_EQ(both.marked_rollback(), std::nullopt);
}

}  // namespace
}  // namespace penstock::engine
