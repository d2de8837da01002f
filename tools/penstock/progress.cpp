#include "tools/penstock/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace penstock::tools {
namespace {

constexpr int kBarCells = 24;
constexpr auto kBarPause = std::chrono::milliseconds(100);
constexpr auto kPlainPause = std::chrono::seconds(5);

using Json = nlohmann::ordered_json;

void print_line(const Json& object) {
  std::fprintf(stderr, "%s\n", object.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
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
  const int full = static_cast<int>(share * kBarCells);
  std::fprintf(stderr, "\r\033[K[%s%s] %3.0f %% %s", std::string(static_cast<size_t>(full), '#').c_str(),
               std::string(static_cast<size_t>(kBarCells - full), ' ').c_str(), share * 100, what.c_str());
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
