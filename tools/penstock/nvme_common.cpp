#include "tools/penstock/nvme_common.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kBlockMost = kGiB;
constexpr uint64_t kDepthMost = 4096;
constexpr uint64_t kUnderWayMost = 4 * kGiB;  // for one drive

}  // namespace

Tick ticking(Session& session, const std::string& what, double begin, double end) {
  return [&session, what, begin, end](double share) {
    session.progress.update(begin + (end - begin) * share, what);
    return check_interrupted();
  };
}

std::vector<std::string> remarks(const Rig& rig) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < rig.folders(); ++i) {
    const ScratchFolder& folder = rig.folder(i);
    if (!folder.file().note().empty()) lines.push_back(folder.path() + ": " + folder.file().note());
    for (size_t j = 0; j < i; ++j) {
      if (rig.folder(j).drive().id == folder.drive().id) {
        lines.push_back(text(rig.folder(j).path(), " and ", folder.path(), " are on the same drive (",
                             folder.drive().device, ") and share its bandwidth"));
      }
    }
  }
  if (rig.memory().pages() == aio::PageKind::small) {
    lines.push_back("buffers are in 4 KiB pages, which may halve the rates; penstock doctor says how to change that");
  }
  return lines;
}

void add_end(Answer& answer, const Status& verdict, const std::string& kept) {
  answer.verdict = verdict;
  answer.json["interrupted"] = verdict.code() == Code::kInterrupted;
  if (!verdict.ok()) answer.text += "incomplete: " + kept + "\n";
}

std::string microseconds(double value) { return fixed(value, value < 100 ? 1 : 0); }

Status check_job_size(uint64_t block_bytes, uint64_t depth) {
  if (block_bytes == 0 || block_bytes > kBlockMost || block_bytes % kAlignmentBytes != 0) {
    return Status(Code::kUsage,
                  text("block size: ", bytes_flag_text(block_bytes), ": a multiple of 4KiB up to 1GiB expected"),
                  "--block 1MiB");
  }
  if (depth == 0 || depth > kDepthMost || block_bytes * depth > kUnderWayMost) {
    return Status(Code::kUsage,
                  text("depth: ", depth, ": 1 to ", std::min(kDepthMost, kUnderWayMost / block_bytes),
                       " expected with blocks of ", bytes_flag_text(block_bytes)),
                  "--depth 16");
  }
  return {};
}

Status check_duration(double seconds) {
  if (seconds > 0) return {};
  return Status(Code::kUsage, "duration: 0 s: more than 0 expected", "leave --duration out, or --duration 10s");
}

void engine_option(Options& options, std::string& into) {
  options.choice("--engine", into, {"auto", "io_uring", "libaio", "threads"}, "I/O engine");
}

Status write_new_file(const std::string& path, const std::string& content, bool force) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (force ? O_TRUNC : O_EXCL), 0644);
  if (file < 0)
    return errno_status("create file: " + path, errno, errno == EEXIST ? "another name, or --force" : "another path");
  const ssize_t written = write(file, content.data(), content.size());
  const int error = errno;
  struct stat found {};
  const bool is_device = fstat(file, &found) == 0 && !S_ISREG(found.st_mode);
  close(file);
  if (written == static_cast<ssize_t>(content.size())) return {};
  if (!is_device) unlink(path.c_str());
  return errno_status("write file: " + path, written < 0 ? error : ENOSPC, "a path on a file system with free space");
}

}  // namespace penstock::tools
