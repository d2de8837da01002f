#include "tools/system/words.h"

#include <sstream>

namespace penstock::tools {

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : between) + word;
  return all;
}

std::vector<std::string> split(const std::string& joined, char between) {
  std::vector<std::string> words;
  std::istringstream in(joined);
  for (std::string word; std::getline(in, word, between);) words.push_back(word);
  return words;
}

}  // namespace penstock::tools
