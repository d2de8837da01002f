#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include "tools/nvme/statistics.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/text_table.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::vector<std::string> paths;
  uint64_t size_bytes = 0;
  double seconds = 40;
};

constexpr uint64_t kBlocks[] = {256 * kKiB, 512 * kKiB, kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB};
constexpr uint32_t kDepths[] = {1, 2, 4, 8, 16, 32};
constexpr uint64_t kUnderWayMost = 64 * kMiB;
constexpr int kPasses = 2;
constexpr const char* kEngines[] = {"io_uring", "libaio", "threads"};
constexpr int kEnginePasses = 3;
// A smaller shape that is as good as the best, within this, is better: less memory, less waiting.
constexpr double kAsGood = 0.98;
// Of a training step with everything on NVMe: 14 bytes read and 12 written for each parameter.
constexpr double kReadBytes = 14, kWrittenBytes = 12;
constexpr double kReadShare = kReadBytes / (kReadBytes + kWrittenBytes);
constexpr uint64_t kSeed = 1;
constexpr double kLayoutSeconds = 5;

struct Shape {
  uint64_t block_bytes;
  uint32_t depth;
  int runs = 0;
  double gbps = 0;  // the mean of the runs; 0: none yet

  void add(double run_gbps) {
    ++runs;
    gbps += (run_gbps - gbps) / runs;
  }
};

Job job_of(const Shape& shape, double seconds) {
  return {.read_share = kReadShare, .block_bytes = shape.block_bytes, .depth = shape.depth, .seconds = seconds};
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (uint64_t block : kBlocks) {
    for (uint32_t depth : kDepths) {
      if (block * depth <= kUnderWayMost) all.push_back({block, depth});
    }
  }
  return all;
}

// Every shape in a random order, several times: a drive that drifts must not favour any. Interrupted, the shapes keep
// what they had.
Status measure(std::vector<Shape>& shapes, Rig& rig, double seconds, const Tick& tick) {
  std::mt19937_64 random(kSeed);
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto runs = static_cast<double>(kPasses * shapes.size());
  double done = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::shuffle(order.begin(), order.end(), random);
    for (size_t index : order) {
      PENSTOCK_TRY_ASSIGN(result, rig.run(job_of(shapes[index], seconds / runs),
                                          [&](double share) { return tick((done + share) / runs); }));
      shapes[index].add(result.gbps());
      done += 1;
    }
  }
  return {};
}

// REQUIRES: some shape was measured.
Shape best_of(const std::vector<Shape>& shapes) {
  double most = 0;
  for (const Shape& shape : shapes) most = std::max(most, shape.gbps);
  Shape best{};
  uint64_t least = UINT64_MAX;
  for (const Shape& shape : shapes) {
    const uint64_t under_way = shape.block_bytes * shape.depth;
    if (shape.gbps < kAsGood * most || under_way > least) continue;
    if (under_way == least && shape.gbps <= best.gbps) continue;
    least = under_way;
    best = shape;
  }
  return best;
}

struct EngineRate {
  std::string name;
  std::string refusal;
  int runs = 0;
  double gbps = 0, cpu_s_per_gb = 0;  // means of the runs

  void add(const JobResult& result) {
    ++runs;
    gbps += (result.gbps() - gbps) / runs;
    cpu_s_per_gb += (result.cpu_s_per_gb() - cpu_s_per_gb) / runs;
  }
};

Result<std::vector<EngineRate>> engines_to_compare() {
  std::vector<EngineRate> rates;
  for (const char* name : kEngines) {
    PENSTOCK_TRY_ASSIGN(choice, aio::parse_engine_choice(name));
    const auto made = aio::make_io_engine(choice);
    rates.push_back({.name = name, .refusal = made.ok() ? "" : made.status().message()});
  }
  return rates;
}

// Interrupted, the rates keep what they had.
Status compare_engines(const Shape& shape, Rig& rig, double seconds, const Tick& tick, std::vector<EngineRate>& rates) {
  const double runs = kEnginePasses * std::size(kEngines);
  double done = 0;
  for (int pass = 0; pass < kEnginePasses; ++pass) {
    for (EngineRate& rate : rates) {
      if (!rate.refusal.empty()) continue;
      PENSTOCK_TRY_ASSIGN(choice, aio::parse_engine_choice(rate.name));
      rig.set_engine(choice);
      PENSTOCK_TRY_ASSIGN(
          result, rig.run(job_of(shape, seconds / runs), [&](double share) { return tick((done + share) / runs); }));
      rate.add(result);
      done += 1;
    }
  }
  return Status();
}

// Blocks down, depths across.
std::string curve_text(const std::vector<Shape>& shapes) {
  std::vector<std::string> heads{"GB/s at depth"};
  for (uint32_t depth : kDepths) heads.push_back(text(depth));
  TextTable table(heads);
  for (uint64_t block : kBlocks) {
    std::vector<std::string> row{bytes_text(block)};
    for (const Shape& shape : shapes) {
      if (shape.block_bytes == block) row.push_back(shape.runs > 0 ? fixed(shape.gbps, 2) : "-");
    }
    row.resize(heads.size());
    table.add(row);
  }
  return table.str();
}

std::string engines_text(const std::vector<EngineRate>& rates) {
  TextTable table({"engine", "GB/s", "CPU s/GB"});
  for (const EngineRate& rate : rates) {
    if (!rate.refusal.empty()) {
      table.add({rate.name, rate.refusal, ""});
    } else if (rate.runs > 0) {
      table.add({rate.name, fixed(rate.gbps, 2), fixed(rate.cpu_s_per_gb, 4)});
    }
  }
  return table.str();
}

// Only what was measured.
Json json_of(const std::vector<Shape>& shapes) {
  Json curve = Json::array();
  for (const Shape& shape : shapes) {
    if (shape.runs == 0) continue;
    curve.push_back({{"block_bytes", shape.block_bytes}, {"depth", shape.depth}, {"gbps", shape.gbps}});
  }
  return curve;
}

Json json_of(const std::vector<EngineRate>& rates) {
  Json engines = Json::array();
  for (const EngineRate& rate : rates) {
    if (rate.runs == 0 && rate.refusal.empty()) continue;
    engines.push_back(
        {{"engine", rate.name}, {"gbps", rate.gbps}, {"cpu_s_per_gb", rate.cpu_s_per_gb}, {"refusal", rate.refusal}});
  }
  return engines;
}

struct Tuning {
  std::vector<Shape> curve = shapes();
  std::vector<EngineRate> engines;
  std::optional<Shape> best;

  static size_t measured(const auto& all) {
    return static_cast<size_t>(std::ranges::count_if(all, [](const auto& one) { return one.runs > 0; }));
  }
  std::string measured_text() const {
    return text(measured(curve), " of ", curve.size(), " shapes and ", measured(engines), " of ", std::size(kEngines),
                " engines were measured");
  }
};

// The curve is printed before the engines are measured at its best shape.
Status run_tuning(Session& session, const Flags& flags, Rig& rig, Tuning& tuning) {
  const double all = kLayoutSeconds + flags.seconds, sweep = 0.8 * flags.seconds;
  const Status swept =
      measure(tuning.curve, rig, sweep,
              ticking(session, "block sizes and depths", kLayoutSeconds / all, (kLayoutSeconds + sweep) / all));
  if (Tuning::measured(tuning.curve) == 0) return swept;
  tuning.best = best_of(tuning.curve);
  session.print(
      text("Measured with the mixture of a training step that keeps everything on NVMe: 14 bytes read and 12 written "
           "for each parameter.\n\n",
           curve_text(tuning.curve), "\n"));
  PENSTOCK_TRY(swept);
  PENSTOCK_TRY_ASSIGN(engines, engines_to_compare());
  tuning.engines = std::move(engines);
  return compare_engines(*tuning.best, rig, flags.seconds - sweep,
                         ticking(session, "engines", (kLayoutSeconds + sweep) / all, 1), tuning.engines);
}

// Empty where none was measured. The first is what is chosen elsewhere, and stays so unless another is faster.
std::string best_engine(const std::vector<EngineRate>& rates) {
  const EngineRate* best = nullptr;
  for (const EngineRate& rate : rates) {
    if (rate.gbps > 0 && (best == nullptr || best->gbps < rate.gbps * kAsGood)) best = &rate;
  }
  return best == nullptr ? "" : best->name;
}

std::string best_text(const Shape& best, const std::string& engine) {
  const double ns_per_parameter = (kReadBytes + kWrittenBytes) / best.gbps;
  return text("best: ", engine, engine.empty() ? "" : ", ", "blocks of ", bytes_text(best.block_bytes), ", ",
              best.depth, " under way on each drive, ", fixed(best.gbps, 2), " GB/s: ", fixed(ns_per_parameter, 2),
              " ns a parameter and step, ", fixed(ns_per_parameter * 7, 1), " s a step for 7B parameters\n");
}

Result<Answer> tune(Session& session, const Flags& flags) {
  PENSTOCK_TRY(check_duration(flags.seconds));
  PENSTOCK_TRY_ASSIGN(
      rig, Rig::make({.paths = flags.paths,
                      .size_bytes = flags.size_bytes,
                      .memory_bytes = kUnderWayMost,
                      .layout_seconds = kLayoutSeconds},
                     ticking(session, "write scratch files", 0, kLayoutSeconds / (kLayoutSeconds + flags.seconds))));
  Tuning tuning;
  const Status verdict = run_tuning(session, flags, *rig, tuning);
  if (!tuning.best) return verdict;
  const Shape& best = *tuning.best;
  const std::string engine = best_engine(tuning.engines);
  Answer answer;
  answer.json = {{"read_share", kReadShare},
                 {"best", {{"block_bytes", best.block_bytes}, {"depth", best.depth}, {"gbps", best.gbps}}},
                 {"ns_per_parameter", (kReadBytes + kWrittenBytes) / best.gbps},
                 {"curve", json_of(tuning.curve)},
                 {"engines", json_of(tuning.engines)},
                 {"remarks", remarks(*rig)}};
  if (!tuning.engines.empty()) answer.text = engines_text(tuning.engines) + "\n";
  answer.text += best_text(best, engine);
  if (!engine.empty()) answer.json["best"]["engine"] = engine;
  add_end(answer, verdict, tuning.measured_text());
  for (const std::string& line : remarks(*rig)) answer.text += line + "\n";
  return answer;
}

}  // namespace

Verb nvme_tune_verb() {
  auto flags = std::make_shared<Flags>();
  return {
      "nvme tune",
      "Find the best block size, depth and engine for the drives",
      "Measures a training step's mixture of reads and writes over block sizes and depths in random order, then the\n"
      "engines at the best of them. Takes under a minute. Among equally fast shapes it picks the one with the fewest\n"
      "bytes under way. Interrupted, it says what is the best of those that were measured.",
      {{"penstock nvme tune /mnt/nvme0", "Tune for one drive"}},
      [flags](Options& options) -> Action {
        options.paths("PATH", flags->paths, 1, "Folders, one on each drive, measured together");
        options.bytes("--size", flags->size_bytes, "Size of each scratch file; 0: up to 4GiB, as space allows");
        options.seconds("--duration", flags->seconds, "Time to measure, plus 5 s to write the scratch files");
        return [flags](Session& session) { return tune(session, *flags); };
      }};
}

}  // namespace penstock::tools
