#include "tools/plan/gantt.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

constexpr double kLeft = 130, kTop = 64, kWidth = 1200, kLaneHeight = 34, kLaneGap = 10, kRight = 24;
constexpr double kMerged = 0.75;  // pixels: what is closer is drawn as one

struct Paint {
  MoveKind kind;
  const char* colour;
  const char* label;
};

constexpr Paint kPaints[] = {
    {MoveKind::forward, "#4c78a8", "forward"},
    {MoveKind::backward, "#f58518", "backward"},
    {MoveKind::update, "#54a24b", "update"},
    {MoveKind::fetch_weight, "#72b7b2", "weights"},
    {MoveKind::read_state, "#9d755d", "state read"},
    {MoveKind::write_state, "#e45756", "state written"},
    {MoveKind::download_gradient, "#b279a2", "gradients"},
    {MoveKind::download_activation, "#eeca3b", "activations"},
    {MoveKind::gather, "#72b7b2", nullptr},
    {MoveKind::upload_weight, "#72b7b2", nullptr},
    {MoveKind::dequantise_weight, "#72b7b2", nullptr},
    {MoveKind::upload_activation, "#eeca3b", nullptr},
    {MoveKind::spill_activation, "#eeca3b", nullptr},
    {MoveKind::fetch_activation, "#eeca3b", nullptr},
    {MoveKind::reduce, "#b279a2", nullptr},
    {MoveKind::spill_gradient, "#b279a2", nullptr},
    {MoveKind::fetch_gradient, "#b279a2", nullptr},
};
constexpr double kColumn = 2;  // pixels
constexpr const char* kOther = "#bab0ac";

const char* colour_of(MoveKind kind) {
  for (const Paint& paint : kPaints) {
    if (paint.kind == kind) return paint.colour;
  }
  return kOther;
}

struct Bar {
  double begin_s, end_s;
  MoveKind kind;
  uint64_t step;
  uint64_t moves = 1;
  double busy_s = 0;
};

// A step has hundreds of thousands of moves, a screen a thousand columns: neighbours of one kind become one bar.
std::vector<Bar> merged(std::vector<Bar> bars, double near_s) {
  std::sort(bars.begin(), bars.end(), [](const Bar& a, const Bar& b) { return a.begin_s < b.begin_s; });
  std::vector<Bar> out;
  for (const Bar& bar : bars) {
    if (!out.empty() && out.back().kind == bar.kind && out.back().step == bar.step &&
        bar.begin_s - out.back().end_s <= near_s) {
      out.back().end_s = std::max(out.back().end_s, bar.end_s);
      out.back().moves += bar.moves;
    } else {
      out.push_back(bar);
    }
  }
  return out;
}

// Where several kinds take turns faster than a column is wide, the column has the colour of the one that takes most of
// it: a drawing has no more bars than it has columns.
std::vector<Bar> in_columns(const std::vector<Bar>& bars, double begin_s, double column_s) {
  std::vector<Bar> out;
  std::map<std::pair<MoveKind, uint64_t>, Bar> within;
  double until_s = 0;
  auto take = [&] {
    if (within.empty()) return;
    auto busy_s = [](const auto& one) { return one.second.busy_s; };
    Bar most = std::max_element(within.begin(), within.end(), [&](const auto& a, const auto& b) {
                 return busy_s(a) < busy_s(b);
               })->second;
    most.moves = 0;
    for (const auto& [kind, bar] : within) {
      most.begin_s = std::min(most.begin_s, bar.begin_s);
      most.end_s = std::max(most.end_s, bar.end_s);
      most.moves += bar.moves;
    }
    out.push_back(most);
    within.clear();
  };
  for (const Bar& bar : bars) {
    if (bar.begin_s >= until_s) {
      take();
      until_s = begin_s + (std::floor((bar.begin_s - begin_s) / column_s) + 1) * column_s;
    }
    if (bar.end_s - bar.begin_s >= column_s) {
      take();
      out.push_back(bar);
      continue;
    }
    Bar& same =
        within.try_emplace({bar.kind, bar.step}, Bar{bar.begin_s, bar.end_s, bar.kind, bar.step, 0, 0}).first->second;
    same.end_s = std::max(same.end_s, bar.end_s);
    same.moves += bar.moves;
    same.busy_s += bar.end_s - bar.begin_s;
  }
  take();
  return out;
}

// 1, 2 or 5 times a power of ten, so that there are about eight ticks.
double tick_s(double length_s) {
  const double raw = length_s / 8, power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

// XML has no place for control characters, and names come from files.
std::string escaped(const std::string& words) {
  std::string out;
  for (char c : words) {
    const bool is_control = static_cast<unsigned char>(c) < ' ';
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : is_control ? "?" : std::string(1, c);
  }
  return out;
}

class Drawing {
 public:
  Drawing(const Plan& plan, const Simulation& simulation) : plan_(plan), simulation_(simulation) {
    const std::vector<SimulatedStep>& steps = simulation.steps;
    const SimulatedStep& shown = steps[steps.size() / 2];
    begin_s_ = std::max(0.0, shown.begin_s - 0.25 * simulation.step_s);
    end_s_ = std::min(simulation.total_s, shown.begin_s + 1.5 * simulation.step_s);
    if (end_s_ <= begin_s_) end_s_ = begin_s_ + 1e-9;
    collect();
  }

  std::string svg(const std::string& title) {
    const double height = kTop + static_cast<double>(lanes_.size()) * (kLaneHeight + kLaneGap) + 70;
    out_ = text(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kLeft + kWidth + kRight, " ", height,
        "\" font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
    write(kLeft, 24, text("<tspan font-size=\"16\">", escaped(title), "</tspan>"));
    axis(height);
    double top = kTop;
    for (const auto& [lane, bars] : lanes_) {
      draw_lane(lane, bars, top);
      top += kLaneHeight + kLaneGap;
    }
    begin_marks(top);
    legend(top + 44);
    return out_ + "</svg>\n";
  }

 private:
  void collect() {
    for (const SimulatedSpan& span : simulation_.spans) {
      const Move& move = plan_.moves[span.move];
      const bool shown = span.end_s > begin_s_ && span.begin_s < end_s_ && move.lane != Lane::none;
      if (!shown || span.end_s <= span.begin_s) continue;
      lanes_[move.lane].push_back(
          {std::max(span.begin_s, begin_s_), std::min(span.end_s, end_s_), move.kind, span.step});
    }
    for (auto& [lane, bars] : lanes_) {
      bars = in_columns(merged(std::move(bars), kMerged / scale()), begin_s_, kColumn / scale());
      bars = merged(std::move(bars), kMerged / scale());
    }
  }

  double scale() const { return kWidth / (end_s_ - begin_s_); }
  double x(double at_s) const { return kLeft + (at_s - begin_s_) * scale(); }

  void write(double at_x, double at_y, const std::string& words, const char* anchor = "start") {
    out_ += text("<text x=\"", fixed(at_x, 1), "\" y=\"", fixed(at_y, 1), "\" text-anchor=\"", anchor, "\">", words,
                 "</text>\n");
  }

  void axis(double height) {
    const double tick = tick_s(end_s_ - begin_s_);
    for (double at = 0; at <= end_s_ - begin_s_; at += tick) {
      const double column = x(begin_s_ + at);
      out_ += text("<line x1=\"", fixed(column, 1), "\" x2=\"", fixed(column, 1), "\" y1=\"", kTop - 8, "\" y2=\"",
                   height - 62, "\" stroke=\"#e4e4e4\"/>\n");
      write(column, kTop - 14, seconds_text(at), "middle");
    }
  }

  void draw_lane(Lane lane, const std::vector<Bar>& bars, double top) {
    write(kLeft - 10, top + kLaneHeight / 2 + 5, name_of(lane), "end");
    for (const Bar& bar : bars) {
      const double width = std::max(0.3, (bar.end_s - bar.begin_s) * scale());
      out_ += text("<rect x=\"", fixed(x(bar.begin_s), 2), "\" y=\"", top, "\" width=\"", fixed(width, 2),
                   "\" height=\"", kLaneHeight, "\" fill=\"", colour_of(bar.kind), "\"><title>", name_of(bar.kind),
                   ", step ", bar.step, ": ", bar.moves, bar.moves == 1 ? " move, " : " moves, ",
                   seconds_text(bar.end_s - bar.begin_s), "</title></rect>\n");
    }
  }

  void begin_marks(double bottom) {
    for (size_t step = 0; step < simulation_.steps.size(); ++step) {
      const double at_s = simulation_.steps[step].begin_s;
      if (at_s < begin_s_ || at_s > end_s_) continue;
      out_ += text("<line x1=\"", fixed(x(at_s), 1), "\" x2=\"", fixed(x(at_s), 1), "\" y1=\"", kTop - 8, "\" y2=\"",
                   bottom, "\" stroke=\"#222\" stroke-dasharray=\"4 3\"/>\n");
      write(x(at_s) + 4, bottom + 14, text("step ", step, " begins"));
    }
  }

  void legend(double top) {
    double left = kLeft;
    for (const Paint& paint : kPaints) {
      if (paint.label == nullptr) continue;
      out_ += text("<rect x=\"", left, "\" y=\"", top - 11, "\" width=\"14\" height=\"14\" fill=\"", paint.colour,
                   "\"/>\n");
      write(left + 20, top, paint.label);
      left += 130;
    }
  }

  const Plan& plan_;
  const Simulation& simulation_;
  double begin_s_ = 0, end_s_ = 0;
  std::map<Lane, std::vector<Bar>> lanes_;
  std::string out_;
};

}  // namespace

std::string gantt_svg(const Plan& plan, const Simulation& simulation, const std::string& title) {
  CHECK(!simulation.spans.empty(), "nothing was recorded");
  return Drawing(plan, simulation).svg(title);
}

}  // namespace penstock::tools
