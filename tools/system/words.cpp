#include "tools/system/words.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "tiering/status.h"

namespace penstock::tools {

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : between) + word;
  return all;
}

std::string shell_quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string shell_word(const std::string& word) {
  const auto is_plain = [](unsigned char c) { return std::isalnum(c) || std::strchr("_-./,:=@%+", c) != nullptr; };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  return shell_quoted(word);
}

std::string shell_words(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(shell_word(word));
  return joined(quoted, " ");
}

bool is_same_path(const std::string& one, const std::string& other) {
  if (one == other) return true;
  std::error_code unknown;
  if (std::filesystem::equivalent(one, other, unknown)) return true;  // two mounts of one folder, too
  const auto whole = [&](const std::string& path) { return std::filesystem::weakly_canonical(path, unknown) / ""; };
  const std::filesystem::path first = whole(one);
  return !unknown && first == whole(other) && !unknown;
}

std::string wrapped(const std::string& line, size_t width, size_t indent) {
  std::string all;
  size_t begin = 0;
  while (true) {
    const size_t room = all.empty() ? width : width - indent;
    size_t end = line.size();
    if (line.size() - begin > room) {
      // Spaces before the text, or between a flag's name and its help, are no place to break at.
      const size_t first = all.empty() ? std::max(indent, line.find_first_not_of(' ')) : begin + 1;
      end = line.rfind(' ', begin + room);
      if (end == std::string::npos || end < first) end = line.find(' ', begin + room);
      end = std::min(end, line.size());
    }
    all += text(all.empty() ? "" : "\n" + std::string(indent, ' '), line.substr(begin, end - begin));
    begin = line.find_first_not_of(' ', end);
    if (begin == std::string::npos) return all;
  }
}

std::vector<std::string> split(const std::string& joined, char between) {
  std::vector<std::string> words;
  std::istringstream in(joined);
  for (std::string word; std::getline(in, word, between);) words.push_back(word);
  return words;
}

}  // namespace penstock::tools
