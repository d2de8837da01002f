#include "tools/plan/trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tiering/check.h"
#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

// What lies on one row must not overlap: each span goes to the first of its lane's rows that is free.
class Rows {
 public:
  uint32_t row_for(double begin_s, double end_s) {
    const auto free =
        std::find_if(end_s_.begin(), end_s_.end(), [&](double row_end_s) { return row_end_s <= begin_s; });
    const auto row = static_cast<uint32_t>(free - end_s_.begin());
    if (free == end_s_.end()) end_s_.push_back(0);
    end_s_[row] = end_s;
    return row;
  }

  uint32_t size() const { return static_cast<uint32_t>(end_s_.size()); }

 private:
  std::vector<double> end_s_;
};

constexpr uint32_t kRowsOfLane = 10'000;  // row r of lane l is thread l * kRowsOfLane + r; the steps come first

std::string quoted(const std::string& words) {
  return nlohmann::json(words).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Trace {
 public:
  Trace(const Plan& plan, const std::vector<Unit>& units) : plan_(plan), units_(units) {}

  std::string json(const Simulation& simulation, const std::string& title) {
    out_ = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
    out_ += text("{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 1, \"args\": {\"name\": ", quoted(title), "}}");
    for (size_t i = 0; i < simulation.steps.size(); ++i) {
      const SimulatedStep& step = simulation.steps[i];
      add(thread(steps_, 0, step.begin_s, step.end_s), text("\"step ", i, "\""), step.begin_s, step.end_s, "");
    }
    std::vector<SimulatedSpan> spans = simulation.spans;
    std::ranges::stable_sort(spans, {}, &SimulatedSpan::begin_s);
    for (const SimulatedSpan& span : spans) {
      const Move& move = plan_.moves[span.move];
      if (move.lane == Lane::none) continue;
      const uint32_t lane = 1 + static_cast<uint32_t>(move.lane);
      add(thread(lanes_[move.lane], lane, span.begin_s, span.end_s), text('"', name_of(move.kind), '"'), span.begin_s,
          span.end_s, arguments(move, span));
    }
    name_rows("steps", 0, steps_.size());
    for (const auto& [lane, rows] : lanes_) name_rows(name_of(lane), 1 + static_cast<uint32_t>(lane), rows.size());
    return out_ + "\n]}\n";
  }

 private:
  static uint32_t thread(Rows& rows, uint32_t lane, double begin_s, double end_s) {
    return lane * kRowsOfLane + rows.row_for(begin_s, end_s);
  }

  void add(uint32_t thread, const std::string& name, double begin_s, double end_s, const std::string& arguments) {
    out_ += text(",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": ", thread, ", \"name\": ", name,
                 ", \"ts\": ", fixed(begin_s * 1e6, 3), ", \"dur\": ", fixed((end_s - begin_s) * 1e6, 3));
    out_ += arguments.empty() ? "}" : text(", \"args\": {", arguments, "}}");
  }

  std::string arguments(const Move& move, const SimulatedSpan& span) const {
    std::string all = text("\"step\": ", span.step, ", \"move\": ", span.move);
    uint32_t unit = move.unit;
    if (move.tile != kNone) {
      all += text(", \"tile\": ", move.tile);
      unit = plan_.tiles[move.tile].unit;
    }
    if (unit != kNone) all += text(", \"unit\": ", quoted(units_[unit].name));
    if (move.micro_batch != kNone) all += text(", \"micro_batch\": ", move.micro_batch);
    if (move.bytes > 0) all += text(", \"bytes\": ", move.bytes);
    return all;
  }

  void name_rows(const std::string& name, uint32_t lane, uint32_t rows) {
    for (uint32_t row = 0; row < rows; ++row) {
      const uint32_t thread = lane * kRowsOfLane + row;
      const std::string head = text(",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": ", thread, ", \"name\": \"thread_");
      out_ += text(head, "name\", \"args\": {\"name\": \"", name, row == 0 ? "" : text(" ", row + 1), "\"}}");
      out_ += text(head, "sort_index\", \"args\": {\"sort_index\": ", thread, "}}");
    }
  }

  const Plan& plan_;
  const std::vector<Unit>& units_;
  Rows steps_;
  std::map<Lane, Rows> lanes_;
  std::string out_;
};

}  // namespace

std::string chrome_trace(const Plan& plan, const std::vector<Unit>& units, const Simulation& simulation,
                         const std::string& title) {
  CHECK(!simulation.spans.empty(), "nothing was recorded");
  return Trace(plan, units).json(simulation, title);
}

}  // namespace penstock::tools
