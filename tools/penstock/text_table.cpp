#include "tools/penstock/text_table.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace penstock::tools {

std::string TextTable::str() const {
  std::vector<size_t> widths(rows_.front().size());
  std::vector<size_t> words(rows_.front().size()), numbers(rows_.front().size());
  for (size_t row = 0; row < rows_.size(); ++row) {
    for (size_t column = 0; column < rows_[row].size(); ++column) {
      const std::string& cell = rows_[row][column];
      widths[column] = std::max(widths[column], cell.size());
      if (row == 0 || cell.empty()) continue;
      ++(std::isdigit(static_cast<unsigned char>(cell.front())) ? numbers : words)[column];
    }
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line = " ";
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string pad(widths[column] - row[column].size(), ' ');
      line +=
          " " + (numbers[column] > 0 && numbers[column] >= words[column] ? pad + row[column] : row[column] + pad) + " ";
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

RunningTable::RunningTable(std::vector<std::string> heads, size_t width_least)
    : heads_(std::move(heads)), width_least_(width_least) {}

std::string RunningTable::row(const std::vector<std::string>& cells) const {
  std::string line;
  for (size_t column = 0; column < cells.size(); ++column) {
    const size_t width = std::max(width_least_, heads_[column].size());
    line += "  " + std::string(width - std::min(width, cells[column].size()), ' ') + cells[column];
  }
  return line + "\n";
}

}  // namespace penstock::tools
