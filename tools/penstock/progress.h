// Progress shows on stderr how far a verb has come: a bar on a terminal, otherwise one plain line at most every 5 s.
// Notes are lines of their own. Where a program reads along (--progress json) every line is an object of one key:
// {"progress": {"share": 0.25, "what": ...}} at most every 0.1 s, {"note": ...}, and for each step {"step": {...}}.
#pragma once

#include <chrono>
#include <string>

namespace penstock::tools {

class Progress {
 public:
  enum class Where { terminal, plain, silent, json };

  explicit Progress(Where where) : where_(where) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What stderr is.
  static Where where_of_stderr();

  // `share` from 0 to 1 of `what` is done.
  void update(double share, const std::string& what);
  void note(const std::string& line);
  // What a verb has to say of one step, a JSON object: for programs only.
  void step(const std::string& object);
  // From now on nothing is shown: another process of the same run shows it.
  void silence() { where_ = Where::silent; }
  // Leaves no half-drawn bar behind.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  Where where_;
  bool drawn_ = false;
  Clock::time_point last_{};
};

}  // namespace penstock::tools
