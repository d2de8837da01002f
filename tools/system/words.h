// Joins and splits strings.
#pragma once

#include <string>
#include <vector>

namespace penstock::tools {

std::string joined(const std::vector<std::string>& words, const std::string& between);
std::vector<std::string> split(const std::string& joined, char between);

}  // namespace penstock::tools
