// TextTable lines up what a person reads: columns as wide as their widest cell, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace penstock::tools {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> heads) { add(std::move(heads)); }

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Every line indented by two; a column whose cells begin with digits is flush right.
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace penstock::tools
