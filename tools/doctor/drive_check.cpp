#include <sys/stat.h>

#include <cerrno>

#include "tools/doctor/checks.h"

namespace penstock::tools {

Result<Findings> check_drive(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return errno_status("look at folder: " + path, errno, "the path of a folder");
  if (!S_ISDIR(found.st_mode)) {
    return Status(Code::kUsage, "look at folder: " + path + ": is not a folder", "the folder that it is in");
  }
  return Findings{};
}

}  // namespace penstock::tools
