// Joins and splits strings.
#pragma once

#include <string>
#include <vector>

namespace penstock::tools {

std::string joined(const std::vector<std::string>& words, const std::string& between);
// `line` in lines of at most `width` columns, where it has spaces to be broken at; all but the first after `indent` of
// them.
std::string wrapped(const std::string& line, size_t width, size_t indent);
std::vector<std::string> split(const std::string& joined, char between);

}  // namespace penstock::tools
