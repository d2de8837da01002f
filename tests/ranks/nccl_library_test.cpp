// NCCL as it is found and loaded: a stand-in in plain memory, and the real one where this machine has it.
#include "runtime/engine/ranks/nccl_library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>

namespace penstock::engine {
namespace {

namespace fs = std::filesystem;

Environment given(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

constexpr const char* kRemedy =
    "install NVIDIA's NCCL (pip install nvidia-nccl-cu13, or the package libnccl2), or name its file in PENSTOCK_NCCL";

TEST(NcclLibrary, SaysWhereItWasLookedForAndWhatToDo) {
  const auto opened = NcclLibrary::open_first({"libnccl-nowhere.so.2", "/nowhere/libnccl.so.2"});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::kEnvironment);
  EXPECT_EQ(opened.status().message(),
            "NCCL: not found: libnccl-nowhere.so.2: cannot open shared object file: No such file or directory; "
            "/nowhere/libnccl.so.2: there is no such file");
  EXPECT_EQ(opened.status().remedy(), kRemedy);
  EXPECT_EQ(NcclLibrary::open(given({{"PENSTOCK_NCCL", "/nowhere/mine.so"}})).status().message(),
            "PENSTOCK_NCCL: NCCL: not found: /nowhere/mine.so: there is no such file");
}

TEST(NcclLibrary, RefusesALibraryThatIsNotNccl) {
  const auto opened = NcclLibrary::open_first({"libm.so.6"});
  EXPECT_EQ(opened.status().message(), "NCCL: libm.so.6 tells no version");
  EXPECT_EQ(opened.status().remedy(), kRemedy);
}

// Where the real one is, without a device: its symbols and what it says of itself.
TEST(NcclLibrary, CallsTheRealOne) {
  const auto opened = NcclLibrary::open();
  if (!opened.ok()) GTEST_SKIP() << opened.status().message();
  const NcclLibrary& nccl = **opened;
  EXPECT_NE(nccl.description().find("NCCL 2."), std::string::npos) << nccl.description();
  EXPECT_EQ(std::string(nccl.call().error_words(nccl::Answer::invalid_usage)).find("invalid usage"), 0u);
  EXPECT_EQ(nccl.call().error_words(nccl::Answer::in_progress), std::string("NCCL operation in progress"));
  EXPECT_TRUE(nccl.outcome("nothing", nccl::Answer::in_progress, nullptr).ok());
  const Status refused = nccl.outcome("send 4 B", nccl::Answer::remote_error, nullptr);
  EXPECT_EQ(refused.message().find("NCCL: send 4 B: remote process exited or there was a network error"), 0u)
      << refused.message();
}

#ifdef PLAIN_NCCL

TEST(NcclLibrary, IsTheOneThatIsNamed) {
  const auto opened = NcclLibrary::open(given({{"PENSTOCK_NCCL", PLAIN_NCCL}}));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->description(), "NCCL 2.29.7 of " PLAIN_NCCL);
}

TEST(NcclLibrary, IsFoundInTheWheelOfAVirtualEnvironment) {
  if (NcclLibrary::open_first({"libnccl.so.2"}).ok()) GTEST_SKIP() << "the system has one, which comes first";
  const fs::path folder = fs::temp_directory_path() / text("penstock-nccl-", ::getpid());
  const fs::path place = folder / "lib/python3.11/site-packages/nvidia/nccl/lib";
  fs::create_directories(place);
  fs::copy_file(PLAIN_NCCL, place / "libnccl.so.2");
  const auto opened = NcclLibrary::open(given({{"VIRTUAL_ENV", folder.string()}}));
  fs::remove_all(folder);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->description(), text("NCCL 2.29.7 of ", (place / "libnccl.so.2").string()));
}

TEST(NcclLibrary, RefusesOneThatIsTooOld) {
  ::setenv("PLAIN_NCCL_VERSION", "2804", 1);
  const auto opened = NcclLibrary::open(given({{"PENSTOCK_NCCL", PLAIN_NCCL}}));
  ::unsetenv("PLAIN_NCCL_VERSION");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().message(), "PENSTOCK_NCCL: NCCL 2.8.4 of " PLAIN_NCCL ": 2.14.0 or newer is needed");
  EXPECT_EQ(opened.status().remedy(), kRemedy);
}

#endif

}  // namespace
}  // namespace penstock::engine
