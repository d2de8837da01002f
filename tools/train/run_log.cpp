#include "tools/train/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "tiering/tier.h"

namespace penstock::tools {

// What a model writes may end within a character.
std::string line_text(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace); }

Result<RunLog> RunLog::open(const std::string& folder) {
  RunLog log;
  if (folder.empty()) return Result<RunLog>(std::move(log));
  log.path_ = folder + "/log.jsonl";
  log.file_ =
      std::make_unique<aio::FileDescriptor>(::open(log.path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!log.file_->is_open()) return errno_status(text("--run: ", log.path_.string()), errno);
  PENSTOCK_TRY(log.find_left());
  return Result<RunLog>(std::move(log));
}

Status RunLog::find_left() {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path_, error);
  if (error || size == 0) return Status();
  std::ifstream file(path_, std::ios::binary);
  std::string tail;
  for (uint64_t begin = size; begin > 0 && tail.find('\n') == std::string::npos;) {
    const uint64_t part = std::min<uint64_t>(begin, 64 * kKiB);
    begin -= part;
    std::string bytes(part, 0);
    file.seekg(static_cast<std::streamoff>(begin));
    if (!file.read(bytes.data(), static_cast<std::streamsize>(part)))
      return errno_status(text("read ", path_.string()), errno);
    tail.insert(0, bytes);
  }
  const std::string line = tail.substr(tail.rfind('\n') + 1);
  if (line.empty()) return Status();
  held_at_bytes_ = size - line.size();
  Json found = Json::parse(line, nullptr, false);
  if (found.is_object()) left_ = std::move(found);
  return Status();
}

void RunLog::drop_held() {
  left_.reset();
  if (!held_at_bytes_) return;
  std::error_code ignored;  // the line before stays as it is, and is a step's all the same
  std::filesystem::resize_file(path_, *held_at_bytes_, ignored);
  held_at_bytes_.reset();
}

Status RunLog::append(const std::string& bytes) {
  const int file = file_->number();
  const off_t before = lseek(file, 0, SEEK_END);
  size_t done = 0;
  int error = before < 0 ? errno : 0;
  while (error == 0 && done < bytes.size()) {
    const ssize_t written = write(file, bytes.data() + done, bytes.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0) return Status();
  if (done > 0 && ftruncate(file, before) != 0) error = errno;
  return errno_status(text("write ", path_.string()), error);
}

void RunLog::hold(const Json& line) {
  if (!is_kept()) return;
  drop_held();
  if (!write_waiting().ok()) return;
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path_, error);
  if (error) return;
  if (append(line_text(line)).ok()) held_at_bytes_ = size;
}

Status RunLog::add(const Json& line) {
  if (!is_kept()) return Status();
  drop_held();
  waiting_ += line_text(line) + "\n";
  return write_waiting();
}

Status RunLog::write_waiting() {
  if (waiting_.empty()) return Status();
  PENSTOCK_TRY(append(waiting_));
  waiting_.clear();
  return Status();
}

}  // namespace penstock::tools
