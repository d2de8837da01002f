#include <algorithm>
#include <memory>

#include "tools/nvme/comparison.h"
#include "tools/nvme/huge_pages.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/nvme_results.h"
#include "tools/penstock/quantity.h"
#include "tools/penstock/text_table.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::vector<std::string> paths;
  uint64_t size_bytes = 0;
  uint64_t block_bytes = kMiB;
  uint64_t depth = 0;
  uint64_t pairs = 5;
  double seconds = 2;
  double goal = 0.97;
  std::string engine = "auto";
};

constexpr double kShares[] = {1, 0, 0.5};
// Where fio's best job is looked for, and for how long each.
constexpr uint32_t kDepths[] = {4, 8, 16, 32};
constexpr double kTrialSeconds = 1;
// Jobs as fast as this are as fast as the fastest, and the one that takes least of the processor is the best.
constexpr double kAsFast = 0.99;

const char* words_for(FioWakes wakes) { return wakes == FioWakes::for_each ? "each" : "several"; }

Json json_of(const FioComparison& comparison) {
  Json ours = Json::array(), fio = Json::array();
  for (const Pair& pair : comparison.pairs) {
    ours.push_back(pair.ours_gbps);
    fio.push_back(pair.fio_gbps);
  }
  return {{"job", name_of(comparison.job)},
          {"fio_wakes_for", words_for(comparison.way.wakes)},
          {"ours_gbps", ours},
          {"fio_gbps", fio},
          {"ratio_median", comparison.ratio_median()},
          {"ratio_min", comparison.ratio_min()},
          {"ratio_max", comparison.ratio_max()},
          {"ours_cpu_s_per_gb", comparison.ours_cpu_s_per_gb()},
          {"fio_cpu_s_per_gb", comparison.fio_cpu_s_per_gb()}};
}

// Of the longest name that a comparison of this job may have.
size_t name_width(Job job) {
  job.read_share = 0.5;
  job.depth = std::max(job.depth, std::ranges::max(kDepths));
  return name_of(job).size();
}

RunningTable table_of(size_t name_width) {
  return RunningTable({flush_left("job", name_width), "fio wakes for", "ours/fio", "from", "to", "ours GB/s",
                       "fio GB/s", "ours CPU s/GB", "fio CPU s/GB"});
}

std::vector<std::string> cells_of(const FioComparison& comparison, size_t name_width) {
  double ours = 0, fio = 0;
  for (const Pair& pair : comparison.pairs) {
    ours += pair.ours_gbps / static_cast<double>(comparison.pairs.size());
    fio += pair.fio_gbps / static_cast<double>(comparison.pairs.size());
  }
  return {flush_left(name_of(comparison.job), name_width),
          words_for(comparison.way.wakes),
          fixed(comparison.ratio_median(), 3),
          fixed(comparison.ratio_min(), 3),
          fixed(comparison.ratio_max(), 3),
          fixed(ours, 2),
          fixed(fio, 2),
          fixed(comparison.ours_cpu_s_per_gb(), 4),
          fixed(comparison.fio_cpu_s_per_gb(), 4)};
}

Status verdict_of(const std::vector<FioComparison>& comparisons, double goal) {
  for (const FioComparison& comparison : comparisons) {
    if (comparison.ratio_median() >= goal) continue;
    return Status(Code::kComparison,
                  text("compare with fio: ", name_of(comparison.job), ": median ratio ",
                       fixed(comparison.ratio_median(), 3), ", at least ", fixed(goal, 2), " expected"),
                  "run it again on an idle machine, with --pairs 9");
  }
  return {};
}

struct FioJob {
  Job job;
  FioWay way;
};

std::vector<FioJob> jobs_of_fio(const Job& job, FioPages pages) {
  std::vector<uint32_t> depths(std::begin(kDepths), std::end(kDepths));
  if (job.depth > 0) depths = {job.depth};
  std::vector<FioJob> jobs;
  for (FioWakes wakes : {FioWakes::for_each, FioWakes::for_several}) {
    for (uint32_t depth : depths) {
      jobs.push_back({job, {pages, wakes}});
      jobs.back().job.depth = depth;
    }
  }
  return jobs;
}

Result<FioJob> best_for_fio(const Job& job, const Rig& rig, FioPages pages) {
  std::vector<std::pair<FioJob, FioResult>> trials;
  double best_gbps = 0;
  for (FioJob each : jobs_of_fio(job, pages)) {
    PENSTOCK_TRY(check_interrupted());
    each.job.seconds = kTrialSeconds;
    PENSTOCK_TRY_ASSIGN(result, run_fio(each.job, rig.file_paths(), each.way));
    best_gbps = std::max(best_gbps, result.gbps);
    each.job.seconds = job.seconds;
    trials.emplace_back(each, result);
  }
  std::erase_if(trials, [&](const auto& trial) { return trial.second.gbps < kAsFast * best_gbps; });
  return std::ranges::min_element(trials, {}, [](const auto& trial) { return trial.second.cpu_s_per_gb; })->first;
}

// The comparisons as they are made: each is printed when it is complete, and the one that was interrupted as far as it
// came.
class Comparisons {
 public:
  Comparisons(Session& session, const Flags& flags, Rig& rig, std::string version, const HugePageReserve& huge_pages)
      : session_(session),
        flags_(flags),
        rig_(rig),
        version_(std::move(version)),
        huge_pages_(huge_pages),
        pages_(huge_pages.enough() ? FioPages::huge : FioPages::small),
        name_width_(name_width({.block_bytes = flags.block_bytes, .depth = static_cast<uint32_t>(flags.depth)})),
        table_(table_of(name_width_)) {}

  Status run() {
    for (size_t i = 0; i < std::size(kShares); ++i) {
      FioComparison comparison;
      const Status status = compare_at(kShares[i], static_cast<double>(i) / std::size(kShares), comparison);
      if (!comparison.pairs.empty()) keep(std::move(comparison));
      PENSTOCK_TRY(status);
    }
    return verdict_of(done_, flags_.goal);
  }

  std::string kept_text() const {
    std::string kept = text(done_.size(), " of ", std::size(kShares), " jobs were compared");
    if (!done_.empty() && done_.back().pairs.size() < flags_.pairs)
      kept += text(", the last in ", done_.back().pairs.size(), " of ", counted(flags_.pairs, "pair"));
    return kept;
  }

  const Json& json() const { return json_; }
  const char* words_for_pages() const { return pages_ == FioPages::huge ? "2 MiB" : "4 KiB"; }

 private:
  Status compare_at(double read_share, double done, FioComparison& comparison) {
    const Job job{.read_share = read_share,
                  .mix = Mix::drawn,
                  .block_bytes = flags_.block_bytes,
                  .depth = static_cast<uint32_t>(flags_.depth),
                  .seconds = flags_.seconds};
    Result<FioJob> best = best_for_fio(job, rig_, pages_);
    // Other processes may have taken the huge pages that were free.
    if (!best.ok() && pages_ == FioPages::huge && done_.empty() && check_interrupted().ok()) {
      pages_ = FioPages::small;
      best = best_for_fio(job, rig_, pages_);
    }
    PENSTOCK_TRY(best.status());
    comparison = {best->job, best->way, {}};
    return compare_with_fio(rig_, flags_.pairs,
                            ticking(session_, name_of(best->job) + ", ours and fio in turns", 0.1 + 0.9 * done,
                                    0.1 + 0.9 * (done + 1.0 / std::size(kShares))),
                            comparison);
  }

  std::string heading() const {
    std::string heading = text("ours: ", rig_.engine_used(), ", ", rig_.memory().description(), "\ntheirs: ", version_,
                               ", io_uring, fixed buffers, registered files, ", words_for_pages(), " pages; ",
                               counted(flags_.pairs, "pair"), " of ", seconds_text(flags_.seconds), " in turns\n");
    if (pages_ == FioPages::small) {
      heading += text("fio had no explicit huge pages, which flatters our engine; as root: sysctl -w vm.nr_hugepages=",
                      huge_pages_.wanted_pages(), "\n");
    }
    return heading;
  }

  void keep(FioComparison comparison) {
    if (done_.empty()) session_.print(heading() + table_.heads());
    session_.print(table_.row(cells_of(comparison, name_width_)));
    json_.push_back(json_of(comparison));
    json_.back()["interrupted"] = comparison.pairs.size() < flags_.pairs;
    done_.push_back(std::move(comparison));
  }

  Session& session_;
  const Flags& flags_;
  Rig& rig_;
  const std::string version_;
  const HugePageReserve& huge_pages_;
  FioPages pages_;
  const size_t name_width_;
  const RunningTable table_;
  std::vector<FioComparison> done_;
  Json json_ = Json::array();
};

Result<Answer> compare(Session& session, const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(version, fio_version());
  PENSTOCK_TRY(check_duration(flags.seconds));
  PENSTOCK_TRY_ASSIGN(engine, aio::parse_engine_choice(flags.engine));
  const uint64_t deepest = flags.depth > 0 ? flags.depth : std::ranges::max(kDepths);
  PENSTOCK_TRY(check_job_size(flags.block_bytes, deepest));
  if (flags.pairs == 0) return Status(Code::kUsage, "--pairs: 0: at least 1 expected", "--pairs 5");

  // Both take their buffers from it: ours for the whole run, fio's while it runs.
  const uint64_t buffers = flags.block_bytes * deepest * flags.paths.size();
  const HugePageReserve huge_pages(2 * buffers + 64 * kMiB);
  PENSTOCK_TRY_ASSIGN(rig, Rig::make({.paths = flags.paths,
                                      .size_bytes = flags.size_bytes,
                                      .memory_bytes = flags.block_bytes * deepest,
                                      .engine = engine},
                                     ticking(session, "write scratch files", 0, 0.1)));

  Comparisons comparisons(session, flags, *rig, version, huge_pages);
  const Status verdict = comparisons.run();
  const bool is_complete = verdict.ok() || verdict.code() == Code::kComparison;
  if (!is_complete && verdict.code() != Code::kInterrupted && comparisons.json().empty()) return verdict;
  Answer answer;
  answer.json["fio"] = version;
  answer.json["pages"] = comparisons.words_for_pages();
  answer.json["pairs"] = comparisons.json();
  answer.json["engine"] = rig->engine_used();
  add_end(answer, is_complete ? Status() : verdict, comparisons.kept_text());
  answer.verdict = verdict;
  return answer;
}

}  // namespace

Verb nvme_compare_verb() {
  auto flags = std::make_shared<Flags>();
  return {
      "nvme compare",
      "Compare our I/O engine with fio's best job on the same file",
      "Reads, writes and half of each, in pairs of runs, ours and fio's in turns, so that a drifting drive drifts for\n"
      "both. fio gets io_uring, fixed buffers, registered files and 2 MiB pages, the depth that suits it best, and "
      "the\n"
      "better of waking for each completion or for a quarter of those under way. CPU time is that of all our threads,\n"
      "and what fio reports for its job. A row is printed as each job's pairs are complete; interrupted, the job\n"
      "under way has the pairs that were, also with --json (`interrupted`). Exit code 6: a median ratio is below the\n"
      "goal.",
      {{"penstock nvme compare /mnt/nvme0", "Compare on one drive"}},
      [flags](Options& options) -> Action {
        options.paths("PATH", flags->paths, 1, "Folders, one on each drive");
        options.bytes("--size", flags->size_bytes, "Size of each scratch file; 0: up to 4GiB, as space allows");
        options.bytes("--block", flags->block_bytes, "Block size");
        options.count("--depth", flags->depth, "Requests under way on each drive; 0: the depth that suits fio best");
        options.count("--pairs", flags->pairs, "Pairs of runs for each job");
        options.seconds("--duration", flags->seconds, "Time of each run");
        options.share("--goal", flags->goal, "Smallest median ratio of our rate to fio's that passes");
        engine_option(options, flags->engine);
        return [flags](Session& session) { return compare(session, *flags); };
      }};
}

}  // namespace penstock::tools
