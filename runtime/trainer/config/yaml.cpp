#include "runtime/trainer/config/yaml.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace penstock::trainer {
namespace {

using json = nlohmann::ordered_json;

constexpr size_t kDepthMost = 64;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // of UTF-8, which some editors write

// Thrown and caught in this file.
struct Refusal {
  size_t at = 0;
  std::string why;
};

bool is_digits(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// The number that a plain word is in YAML 1.2, as JSON writes it; empty if it is a word.
std::string number_of(std::string_view word) {
  std::string number;
  if (word.starts_with('-') || word.starts_with('+')) {
    if (word.front() == '-') number = "-";
    word.remove_prefix(1);
  }
  const std::string_view digits = word.substr(0, word.find_first_not_of("0123456789"));
  word.remove_prefix(digits.size());
  number += digits.empty() ? "0" : digits;
  std::string_view fraction;
  const bool has_point = word.starts_with('.');
  if (has_point) {
    word.remove_prefix(1);
    fraction = word.substr(0, word.find_first_not_of("0123456789"));
    word.remove_prefix(fraction.size());
    number += "." + (fraction.empty() ? "0" : std::string(fraction));
  }
  if (digits.empty() && fraction.empty()) return "";
  if (word.empty()) return number;
  if (word.front() != 'e' && word.front() != 'E') return "";
  number += "e";
  word.remove_prefix(1);
  if (word.starts_with('-') || word.starts_with('+')) number += word.front(), word.remove_prefix(1);
  return is_digits(word) ? number + std::string(word) : "";
}

class Yaml {
 public:
  explicit Yaml(const std::string& text) : text_(text) {}

  json read() {
    check_characters();
    skip_to_value();
    if (starts_marker("---")) {
      at_ += 3;
      const size_t marker = at_;
      skip_to_value();
      if (line_of(at_) == line_of(marker)) reject(at_, "what follows --- begins on a line of its own");
    }
    if (at_ == text_.size()) return json();
    const json value = block(0);
    skip_to_value();
    if (at_ < text_.size()) reject(at_, "this belongs to nothing before it: indent it as what it goes on with");
    return value;
  }

  // "line 3, column 7"
  std::string place_of(size_t at) const {
    const size_t begin = begin_of_line(at);
    return text_place(line_of(at), at - begin + 1);
  }

 private:
  static std::string text_place(size_t line, size_t column) { return text("line ", line, ", column ", column); }

  // -- characters and lines -------------------------------------------------------------------------------------------

  [[noreturn]] void reject(size_t at, const std::string& why) const { throw Refusal{at, why}; }

  void check_characters() const {
    for (size_t i = 0; i < text_.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text_[i]);
      const bool is_return = byte == '\r' && i + 1 < text_.size() && text_[i + 1] == '\n';
      if ((byte < 0x20 && byte != '\n' && byte != '\t' && !is_return) || byte == 0x7f)
        reject(i, text("a control character, of number ", int{byte}));
    }
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\n'; }
  bool at_end() const { return at_ >= text_.size(); }
  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  static bool is_blank(char c) { return is_space(c) || c == '\n'; }
  size_t begin_of_line(size_t at) const {
    if (at == 0) return 0;
    const size_t end = text_.rfind('\n', at - 1);
    return end == std::string::npos ? 0 : end + 1;
  }
  size_t line_of(size_t at) const {
    return 1 + static_cast<size_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  }
  size_t column() const { return at_ - begin_of_line(at_); }
  bool starts_marker(std::string_view marker) const {
    return column() == 0 && text_.compare(at_, marker.size(), marker) == 0 && is_blank(peek(marker.size()));
  }
  bool starts_comment() const { return peek() == '#' && !at_end() && (at_ == 0 || is_blank(text_[at_ - 1])); }

  void skip_spaces() {
    while (!at_end() && is_space(peek())) ++at_;
    if (starts_comment()) at_ = std::min(text_.find('\n', at_), text_.size());
  }

  // Behind spaces, comments and ends of lines.
  void skip_to_value() {
    while (true) {
      skip_spaces();
      if (at_end() || peek() != '\n') break;
      ++at_;
    }
    if (at_end()) return;
    const size_t begin = begin_of_line(at_);
    const size_t tab = text_.find('\t', begin);
    if (tab < at_ && text_.find_first_not_of(" \t", begin) == at_)
      reject(tab, "a tab in the indentation: spaces expected");
  }

  // -- blocks ---------------------------------------------------------------------------------------------------------

  bool starts_item() const { return peek() == '-' && is_blank(peek(1)); }

  // The value that begins here, and goes on in lines that are indented as it is.
  json block(size_t depth) {
    if (depth > kDepthMost) reject(at_, text("more than ", kDepthMost, " levels"));
    refuse_markers();
    if (starts_item()) return block_list(depth);
    if (starts_key()) return block_map(depth);
    return line_value(depth);
  }

  void refuse_markers() const {
    if (starts_marker("---") || starts_marker("...")) reject(at_, "a second document: a config is one");
    if (column() == 0 && peek() == '%') reject(at_, "a directive (%) is not supported");
  }

  json block_list(size_t depth) {
    const size_t indent = column();
    json list = json::array();
    while (!at_end() && column() == indent && starts_item()) {
      const size_t item = at_++;
      list.push_back(behind(item, indent, depth, /*list_beside=*/false));
      skip_to_value();
      if (!at_end()) refuse_markers();
    }
    expect_indent_at_most(indent);
    return list;
  }

  json block_map(size_t depth) {
    const size_t indent = column();
    json map = json::object();
    std::map<std::string, size_t> lines;
    while (!at_end() && column() == indent && !starts_item()) {
      const size_t at = at_;
      if (!starts_key()) reject(at, "a key and a colon expected, as in \"max_steps: 100\"");
      const std::string key = read_key();
      ++at_;  // the colon
      if (key == "<<") reject(at, "a merge (<<) is not supported: write the keys out");
      if (const auto [first, is_new] = lines.emplace(key, line_of(at)); !is_new)
        reject(at, text("'", key, "' is there already, in line ", first->second));
      map[key] = behind(at, indent, depth, /*list_beside=*/true);
      skip_to_value();
      if (!at_end()) refuse_markers();
    }
    expect_indent_at_most(indent);
    return map;
  }

  void expect_indent_at_most(size_t indent) const {
    if (!at_end() && column() > indent)
      reject(at_, text("indented by ", column(), " spaces, ", indent,
                       " or fewer expected: a value goes on in no further line"));
  }

  // The value of a key or item that began at `owner`: in the same line, or indented by more below it. A list may stand
  // right below its key.
  json behind(size_t owner, size_t indent, size_t depth, bool list_beside) {
    skip_spaces();
    if (!at_end() && peek() != '\n') {
      if (!list_beside) return block(depth + 1);  // "- key: value", "- - item"
      if (starts_item()) reject(at_, "a list begins in a line of its own");
      return line_value(depth + 1);
    }
    skip_to_value();
    if (at_end()) return json();
    const bool is_inside = column() > indent || (list_beside && column() == indent && starts_item());
    if (!is_inside || line_of(at_) == line_of(owner)) return json();
    return block(depth + 1);
  }

  // -- keys -----------------------------------------------------------------------------------------------------------

  // Whether the line goes on with a key: a word and a colon.
  bool starts_key() const {
    const size_t end = end_of_key();
    return end != std::string::npos;
  }

  // Where the colon is.
  size_t end_of_key() const {
    if (at_end()) return std::string::npos;
    size_t end = at_;
    if (peek() == '"' || peek() == '\'') {
      end = end_of_quotes(at_);
      if (end == std::string::npos) return end;
      while (end < text_.size() && is_space(text_[end])) ++end;
    } else if (is_one_of(std::string_view(text_).substr(at_, 1), {"[", "{", "#"})) {
      return std::string::npos;
    } else {
      while (end < text_.size() && text_[end] != '\n' && !ends_key(end)) {
        if (text_[end] == '#' && end > at_ && is_space(text_[end - 1])) return std::string::npos;
        ++end;
      }
    }
    return end < text_.size() && ends_key(end) ? end : std::string::npos;
  }
  bool ends_key(size_t at) const { return text_[at] == ':' && (at + 1 == text_.size() || is_blank(text_[at + 1])); }

  // Up to its colon.
  std::string read_key() {
    const size_t end = end_of_key();
    if (peek() == '"' || peek() == '\'') {
      const std::string key = quoted().get<std::string>();
      at_ = end;
      return key;
    }
    std::string key = text_.substr(at_, end - at_);
    refuse_signs(key, /*is_key=*/true);
    while (!key.empty() && is_space(key.back())) key.pop_back();
    if (key.empty()) reject(at_, "a colon without a key");
    at_ = end;
    return key;
  }

  // -- values in a line -----------------------------------------------------------------------------------------------

  // A value that begins in this line, and nothing behind it.
  json line_value(size_t depth) {
    const size_t at = at_;
    json value;
    if (peek() == '[' || peek() == '{')
      value = flow(depth);
    else if (peek() == '"' || peek() == '\'')
      value = quoted();
    else
      value = plain(/*in_flow=*/false);
    skip_spaces();
    if (!at_end() && peek() != '\n') {
      const bool is_key = peek() == ':';
      reject(is_key ? at : at_, is_key ? "a second colon: what has a colon and a space needs quotes"
                                       : "the value has ended: a comma, an end of the line or quotes are missing");
    }
    return value;
  }

  size_t end_of_quotes(size_t at) const {
    const char quote = text_[at];
    for (size_t i = at + 1; i < text_.size() && text_[i] != '\n'; ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        if (quote == '"' || i + 1 == text_.size() || text_[i + 1] != quote) return i + 1;
        ++i;
      }
    }
    return std::string::npos;
  }

  json quoted() {
    const size_t at = at_, end = end_of_quotes(at_);
    if (end == std::string::npos) reject(at, "the quotes are not closed in this line");
    at_ = end;
    if (text_[at] == '"') {
      json word = json::parse(text_.substr(at, end - at), nullptr, /*allow_exceptions=*/false);
      if (word.is_discarded())
        reject(at, "in double quotes, a backslash is for what JSON has: \\n, \\t, \\\", \\\\, \\u00e9");
      return word;
    }
    std::string word;
    for (size_t i = at + 1; i + 1 < end; ++i) {
      word += text_[i];
      if (text_[i] == '\'') ++i;
    }
    return word;
  }

  // What YAML gives a meaning that is not supported here.
  void refuse_signs(std::string_view word, bool is_key) const {
    switch (word.front()) {
      case '&':
        reject(at_, "an anchor (&) is not supported: write the value out");
      case '*':
        reject(at_, "an alias (*) is not supported: write the value out, or put quotes around the word");
      case '!':
        reject(at_, "a tag (!) is not supported: put quotes around a word");
      case '|':
      case '>':
        reject(at_, "a block of text (| or >) is not supported: write it in double quotes, with \\n");
      case '@':
      case '`':
      case '%':
        reject(at_, text("'", word.substr(0, 1), "' begins no word: put quotes around it"));
      case '?':
        if (word.size() == 1 || is_space(word[1])) reject(at_, "a key that is a value itself (?) is not supported");
        return;
      case ',':
      case ']':
      case '}':
        reject(at_, text("'", word.substr(0, 1), "' closes or divides nothing here"));
      default:
        if (!is_key && word == "-") reject(at_, "a dash without an item");
    }
  }

  json plain(bool in_flow) {
    const size_t at = at_;
    size_t end = at;
    auto ends = [&] {
      const char c = text_[end];
      if (c == '\n' || (c == ':' && (end + 1 == text_.size() || is_blank(text_[end + 1])))) return true;
      if (c == '#' && end > at && is_space(text_[end - 1])) return true;
      if (!in_flow) return false;
      const bool is_colon = c == ':' && end + 1 < text_.size() && std::string_view(",[]{}").find(text_[end + 1]) < 5;
      return is_colon || std::string_view(",[]{}").find(c) < 5;
    };
    while (end < text_.size() && !ends()) ++end;
    std::string_view word = std::string_view(text_).substr(at, end - at);
    while (!word.empty() && is_space(word.back())) word.remove_suffix(1);
    if (word.empty()) reject(at, "a value expected");
    refuse_signs(word, /*is_key=*/false);
    if (in_flow && word.starts_with("- ")) reject(at, "a list in brackets has commas, and no dashes");
    at_ = at + word.size();
    return meaning_of(word, at);
  }

  json meaning_of(std::string_view word, size_t at) const {
    if (is_one_of(word, {"null", "Null", "NULL", "~"})) return json();
    if (is_one_of(word, {"true", "True", "TRUE"})) return true;
    if (is_one_of(word, {"false", "False", "FALSE"})) return false;
    std::string lower(word);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    if (is_one_of(lower, {"yes", "no", "on", "off", "y", "n"}))
      reject(at,
             text("'", word, "' is a word to some readers and true or false to others: write true, false or quotes"));
    if (is_one_of(lower, {".inf", "-.inf", "+.inf", ".nan"})) reject(at, text("'", word, "' is no number of a config"));
    const std::string_view unsigned_word = word.front() == '-' || word.front() == '+' ? word.substr(1) : word;
    if (unsigned_word.size() > 1 && is_digits(unsigned_word) && unsigned_word.front() == '0')
      reject(at, text("'", word, "' is octal to some readers: write it without the zeros in front, or quotes"));
    if (unsigned_word.starts_with("0x") || unsigned_word.starts_with("0o"))
      reject(at, text("'", word, "' is a number to some readers: write it in decimals, or quotes"));
    std::string number = number_of(word);
    if (number.empty()) return std::string(word);
    // JSON has no zeros in front, which a fraction may have here.
    const size_t first = number.front() == '-' ? 1 : 0;
    while (number[first] == '0' && number.size() > first + 1 && number[first + 1] >= '0' && number[first + 1] <= '9')
      number.erase(first, 1);
    json value = json::parse(number, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) reject(at, text("'", word, "' is beyond what a number can be"));
    return value;
  }

  // [a, b] and {a: b}, in as many lines as they take.
  json flow(size_t depth) {
    if (depth > kDepthMost) reject(at_, text("more than ", kDepthMost, " levels"));
    const size_t open = at_;
    const bool is_map = peek() == '{';
    const char close = is_map ? '}' : ']';
    json value = is_map ? json::object() : json::array();
    ++at_;
    while (true) {
      skip_in_flow(open);
      if (peek() == close) break;
      if (is_map)
        flow_entry(depth, open, value);
      else
        value.push_back(flow_value(depth));
      skip_in_flow(open);
      if (peek() == close) break;
      if (peek() != ',')
        reject(at_, text("a comma or '", close, "' expected, for the '", text_[open], "' of ", place_of(open)));
      ++at_;
    }
    ++at_;
    return value;
  }

  void skip_in_flow(size_t open) {
    do {
      skip_spaces();
    } while (!at_end() && peek() == '\n' && ++at_ > 0);
    if (at_end()) reject(open, text("'", text_[open], "' is not closed"));
  }

  json flow_value(size_t depth) {
    if (peek() == '[' || peek() == '{') return flow(depth + 1);
    if (peek() == '"' || peek() == '\'') return quoted();
    return plain(/*in_flow=*/true);
  }

  void flow_entry(size_t depth, size_t open, json& map) {
    const size_t at = at_;
    const bool is_quoted = peek() == '"' || peek() == '\'';
    std::string key;
    if (is_quoted) {
      key = quoted().get<std::string>();
    } else {
      size_t end = at_;
      while (end < text_.size() && std::string_view(":,[]{}\n").find(text_[end]) == std::string_view::npos) ++end;
      key = text_.substr(at_, end - at_);
      while (!key.empty() && is_space(key.back())) key.pop_back();
      if (key.empty()) reject(at, "a key expected");
      refuse_signs(key, /*is_key=*/true);
      at_ = end;
    }
    skip_in_flow(open);
    if (peek() != ':') reject(at_, text("a colon expected, behind '", key, "'"));
    ++at_;
    if (!is_quoted && !is_blank(peek()) && std::string_view(",[]{}").find(peek()) == std::string_view::npos)
      reject(at_, "a space expected behind the colon");
    if (map.contains(key)) reject(at, text("'", key, "' is there already"));
    skip_in_flow(open);
    map[key] = peek() == ',' || peek() == '}' ? json() : flow_value(depth);
  }

  const std::string& text_;
  size_t at_ = 0;
};

}  // namespace

Result<nlohmann::ordered_json> parse_yaml(const std::string& words) {
  const std::string unmarked = words.substr(words.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  Yaml yaml(unmarked);
  try {
    json value = yaml.read();
    (void)value.dump();  // which refuses what is no UTF-8
    return value;
  } catch (const Refusal& refusal) {
    return Status(Code::kUsage, text("at ", yaml.place_of(refusal.at), ": ", refusal.why));
  } catch (const json::exception&) {
    return Status(Code::kUsage, "its text is not UTF-8");
  }
}

bool looks_like_yaml(const std::string& words) {
  std::string_view left = words;
  if (left.starts_with(kByteOrderMark)) left.remove_prefix(kByteOrderMark.size());
  while (!left.empty()) {
    const size_t begin = left.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return false;
    left.remove_prefix(begin);
    if (left.starts_with("//")) {
      left.remove_prefix(std::min(left.find('\n'), left.size()));
    } else if (left.starts_with("/*")) {
      const size_t end = left.find("*/");
      if (end == std::string_view::npos) return false;
      left.remove_prefix(end + 2);
    } else {
      return left.front() != '{' && left.front() != '[';
    }
  }
  return false;
}

}  // namespace penstock::trainer
