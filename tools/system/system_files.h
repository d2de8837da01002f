// SystemFiles reads the kernel's small files under /proc and /sys; tests give it another root.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tools {

class SystemFiles {
 public:
  explicit SystemFiles(std::string root = "") : root_(std::move(root)) {}

  // Without the newline at the end; nothing where the file is absent or unreadable.
  std::optional<std::string> read(const std::string& path) const;
  std::optional<uint64_t> read_number(const std::string& path) const;
  // The rest of the first line that begins with `key`, trimmed: "MemTotal:" in /proc/meminfo.
  std::optional<std::string> value_of(const std::string& path, const std::string& key) const;
  std::vector<std::string> list(const std::string& folder) const;

 private:
  const std::string root_;
};

std::vector<std::string> lines_of(const std::string& text);
std::string trimmed(const std::string& text);

}  // namespace penstock::tools
