// Joins, splits and quotes strings, and compares paths.
#pragma once

#include <string>
#include <vector>

namespace penstock::tools {

std::string joined(const std::vector<std::string>& words, const std::string& between);
// `line` in lines of at most `width` columns, where it has spaces to be broken at; all but the first after `indent` of
// them.
std::string wrapped(const std::string& line, size_t width, size_t indent);
// As bash, zsh and fish take it for one word; shell_word() leaves alone what needs no quotes.
std::string shell_quoted(const std::string& word);
std::string shell_word(const std::string& word);
std::string shell_words(const std::vector<std::string>& words);
// Whether both lead to the same place, which need not be there.
bool is_same_path(const std::string& one, const std::string& other);
std::vector<std::string> split(const std::string& joined, char between);

}  // namespace penstock::tools
