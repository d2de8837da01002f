// TextTable aligns columns for people: each as wide as its widest cell, numbers flush right.
#pragma once

#include <string>
#include <vector>

namespace penstock::tools {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> heads) { add(std::move(heads)); }

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Every line indented by two; a column of which half the cells begin with digits is flush right.
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// The same for rows that are printed as they come: a column is as wide as its head, and at least `width_least`.
class RunningTable {
 public:
  explicit RunningTable(std::vector<std::string> heads, size_t width_least = 8);

  std::string heads() const { return row(heads_); }
  // One line. A cell wider than its column moves the rest of its line to the right.
  std::string row(const std::vector<std::string>& cells) const;

 private:
  const std::vector<std::string> heads_;
  const size_t width_least_;
};

}  // namespace penstock::tools
