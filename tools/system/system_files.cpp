#include "tools/system/system_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace penstock::tools {

std::optional<std::string> SystemFiles::read(const std::string& path) const {
  std::ifstream file(root_ + path);
  if (!file) return std::nullopt;
  std::ostringstream all;
  all << file.rdbuf();
  if (file.bad() || all.bad()) return std::nullopt;
  std::string content = std::move(all).str();
  if (content.ends_with('\n')) content.pop_back();
  return content;
}

std::optional<uint64_t> SystemFiles::read_number(const std::string& path) const {
  const auto content = read(path);
  uint64_t number = 0;
  if (!content) return std::nullopt;
  const auto [rest, error] = std::from_chars(content->data(), content->data() + content->size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::optional<std::string> SystemFiles::value_of(const std::string& path, const std::string& key) const {
  for (const std::string& line : lines_of(read(path).value_or(""))) {
    if (line.starts_with(key)) return trimmed(line.substr(key.size()));
  }
  return std::nullopt;
}

std::vector<std::string> SystemFiles::list(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root_ + folder, error)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string trimmed(const std::string& text) {
  const char* const kBlank = " \t\r\n:";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

}  // namespace penstock::tools
