#include "tools/penstock/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tiering/check.h"

namespace penstock::tools {
namespace {

constexpr size_t kBarCells = 24;
constexpr auto kBarPause = std::chrono::milliseconds(100);
constexpr auto kPlainPause = std::chrono::seconds(5);

using Json = nlohmann::ordered_json;

void print_line(const Json& object) {
  std::fprintf(stderr, "%s\n", object.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

// What fits into one line of the terminal: a longer one could not be drawn over.
std::string cut_to_terminal(std::string line) {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || line.size() < size.ws_col) return line;
  size_t end = size.ws_col - 1u;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;  // within a character of UTF-8
  line.resize(end);
  return line;
}

}  // namespace

Progress::Where Progress::where_of_stderr() { return isatty(STDERR_FILENO) ? Where::terminal : Where::plain; }

void Progress::update(double share, const std::string& what) {
  const Clock::time_point now = Clock::now();
  if (where_ == Where::silent || now - last_ < (where_ == Where::plain ? Clock::duration(kPlainPause) : kBarPause)) {
    return;
  }
  last_ = now;
  share = std::clamp(share, 0.0, 1.0);
  if (where_ == Where::json) return print_line({{"progress", {{"share", share}, {"what", what}}}});
  if (where_ == Where::plain) {
    std::fprintf(stderr, "%3.0f %% %s\n", share * 100, what.c_str());
    return;
  }
  const auto full = static_cast<size_t>(share * kBarCells);
  std::array<char, 8> percent{};
  std::snprintf(percent.data(), percent.size(), "%3.0f %%", share * 100);
  const std::string line =
      text("[", std::string(full, '#'), std::string(kBarCells - full, ' '), "] ", percent.data(), " ", what);
  std::fprintf(stderr, "\r\033[K%s", cut_to_terminal(line).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::note(const std::string& line) {
  if (where_ == Where::silent) return;
  if (where_ == Where::json) return print_line({{"note", line}});
  clear();
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Progress::step(const std::string& object) {
  if (where_ == Where::json) std::fprintf(stderr, "{\"step\":%s}\n", object.c_str());
}

void Progress::clear() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace penstock::tools
