#include <algorithm>
#include <memory>

#include "tools/nvme/fio.h"
#include "tools/nvme/profile_file.h"
#include "tools/nvme/steady.h"
#include "tools/penstock/command.h"
#include "tools/penstock/nvme_common.h"
#include "tools/penstock/nvme_results.h"
#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

struct Flags {
  std::vector<std::string> paths;
  std::string pattern = "sequential";
  std::vector<double> read_shares{1, 0, 0.5};
  std::vector<uint64_t> blocks{kMiB};
  std::vector<uint64_t> depths{8};
  std::string engine = "auto";
  double seconds = 2;
  uint64_t size_bytes = 0;
  bool steady = false;
  uint64_t write_budget_bytes = 0;
  std::string profile;
  std::string emit_fio;
  bool force = false;
};

// With more results than this, only the table is printed.
constexpr size_t kShownInDetail = 3;
constexpr uint64_t kWantedBytes = 4 * kGiB;

Result<std::vector<Job>> jobs_of(const Flags& flags) {
  std::vector<Job> jobs;
  for (double share : flags.read_shares) {
    for (uint64_t block : flags.blocks) {
      for (uint64_t depth : flags.depths) {
        PENSTOCK_TRY(check_job_size(block, depth));
        jobs.push_back({.pattern = flags.pattern == "random" ? Pattern::random : Pattern::sequential,
                        .read_share = share,
                        .block_bytes = block,
                        .depth = static_cast<uint32_t>(depth),
                        .seconds = flags.seconds});
      }
    }
  }
  return jobs;
}

uint64_t memory_for(const std::vector<Job>& jobs) {
  uint64_t most = 0;
  for (const Job& job : jobs) most = std::max(most, job.block_bytes * job.depth);
  return most;
}

std::string histogram_text(const LatencyHistogram& latency) {
  constexpr double kBarCells = 40;
  std::string out;
  for (const auto& [below_us, count] : latency.by_powers_of_two()) {
    const double share = static_cast<double>(count) / static_cast<double>(latency.count());
    std::string bound = microseconds(below_us);
    bound.insert(0, 9 - std::min<size_t>(9, bound.size()), ' ');
    out += text("    below ", bound, " us ", std::string(static_cast<size_t>(share * kBarCells + 0.5), '#'), " ",
                fixed(share * 100, 1), " %\n");
  }
  return out;
}

// The rate in ten parts of the time.
std::string rate_text(const std::vector<RatePoint>& rate) {
  constexpr size_t kParts = 10;
  if (rate.size() < kParts) return "";
  std::string out = "    GB/s over time:";
  for (size_t part = 0; part < kParts; ++part) {
    const size_t begin = part * rate.size() / kParts, end = (part + 1) * rate.size() / kParts;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += rate[i].gbps;
    out += " " + fixed(sum / static_cast<double>(end - begin), 2);
  }
  return out + "\n";
}

// Rows are printed as jobs end. Where one of them is interrupted or refused, those before it are the answer.
Answer run_jobs(Session& session, const Flags& flags, const std::vector<Job>& jobs, Rig& rig) {
  Answer answer;
  const ResultTable table(jobs);
  Json results = Json::array();
  Status verdict;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const auto done = static_cast<double>(i), all = static_cast<double>(jobs.size());
    const auto result = rig.run(jobs[i], ticking(session, name_of(jobs[i]), done / all, (done + 1) / all));
    verdict = result.status();
    if (!verdict.ok()) break;
    if (i == 0) session.print(text(rig.engine_used(), ", ", rig.memory().description(), "\n", table.heads()));
    session.print(table.rows(jobs[i], *result));
    if (jobs.size() <= kShownInDetail) {
      answer.text += text("\n  ", name_of(jobs[i]), "\n", histogram_text(result->latency), rate_text(result->rate));
    }
    results.push_back(result_json(jobs[i], *result, rig.engine_used()));
  }
  if (!flags.emit_fio.empty()) answer.text += "fio job file: " + flags.emit_fio + "\n";
  add_end(answer, verdict, text(results.size(), " of ", counted(jobs.size(), "job"), " were measured"));
  answer.json["results"] = std::move(results);
  return answer;
}

// Saves the curve in the profile if that has the drive; says whether it has.
Result<bool> remember(const std::string& profile_flag, const std::string& folder, const Steady& steady) {
  PENSTOCK_TRY_ASSIGN(path, profile_path_to_write(profile_flag));
  PENSTOCK_TRY_ASSIGN(profile, load_or_begin_profile(path));
  for (DriveRates& drive : profile.drives) {
    if (drive.path != profile_name_of(folder)) continue;
    drive.sustained = MixCurve(steady.mix_curve);
    PENSTOCK_TRY(save_profile(profile, path));
    return true;
  }
  return false;
}

Json steady_json(const std::string& path, const Steady& steady, bool remembered) {
  Json rate = Json::array();
  for (const RatePoint& point : steady.rate) rate.push_back({point.at_s, point.gbps});
  return {{"path", path},
          {"written_bytes", steady.written_bytes},
          {"burst_gbps", steady.burst_gbps},
          {"sustained_gbps", steady.sustained_gbps},
          {"fell_after_bytes", steady.fell_after_bytes ? Json(*steady.fell_after_bytes) : Json()},
          {"mix_curve", steady.mix_curve},
          {"rate_over_time", rate},
          {"in_profile", remembered}};
}

std::string steady_text(const std::string& path, const Steady& steady, bool remembered) {
  return text(path, ": writes started at ", fixed(steady.burst_gbps, 2), " GB/s, ",
              steady.fell_after_bytes ? "fell after " + bytes_text(*steady.fell_after_bytes) + " and stayed at "
                                      : "did not fall within " + bytes_text(steady.written_bytes) + ", and ended at ",
              fixed(steady.sustained_gbps, 2), " GB/s\n", rate_text(steady.rate),
              remembered ? "  the sustained rates were saved in the profile\n"
                         : "  nothing was saved: the drive is not in the profile (`penstock nvme probe` adds it)\n");
}

Status run_steady_on(size_t folder, Session& session, const Flags& flags, Rig& rig, Json& results) {
  const std::string& path = rig.folder(folder).path();
  const SteadyOptions options{flags.write_budget_bytes, flags.blocks.front(),
                              static_cast<uint32_t>(flags.depths.front())};
  PENSTOCK_TRY_ASSIGN(steady, measure_steady(rig, folder, options, ticking(session, "write to " + path)));
  PENSTOCK_TRY_ASSIGN(remembered, remember(flags.profile, path, steady));
  results.push_back(steady_json(path, steady, remembered));
  session.print(steady_text(path, steady, remembered));
  return Status();
}

// One folder after another; those before one that is interrupted are the answer.
Answer run_steady(Session& session, const Flags& flags, Rig& rig) {
  Answer answer;
  Json results = Json::array();
  Status verdict;
  for (size_t folder = 0; folder < rig.folders() && verdict.ok(); ++folder) {
    verdict = run_steady_on(folder, session, flags, rig, results);
  }
  add_end(answer, verdict, text(results.size(), " of ", counted(rig.folders(), "folder"), " were measured"));
  answer.json["steady"] = std::move(results);
  return answer;
}

// What fio has for the engine that does the work here, chosen or found.
Result<FioEngine> fio_engine_of(aio::IoEngineChoice choice) {
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine(choice));
  const std::string used = made.engine->description();
  return used.starts_with("io_uring") ? FioEngine::io_uring
         : used.starts_with("libaio") ? FioEngine::libaio
                                      : FioEngine::psync;
}

Result<Answer> bench(Session& session, const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(engine, aio::parse_engine_choice(flags.engine));
  PENSTOCK_TRY_ASSIGN(jobs, jobs_of(flags));
  PENSTOCK_TRY(check_duration(flags.seconds));
  if (flags.steady && flags.write_budget_bytes < kGiB) {
    return Status(
        Code::kUsage,
        text("--write-budget: ", bytes_text(flags.write_budget_bytes), ": at least 1 GiB expected with --steady"),
        "--write-budget 200GiB: how much may be written, since writing wears the drive");
  }
  for (const std::string& path : flags.paths) {
    if (auto drive = examine_folder(path); !drive.ok()) return drive.status();
  }
  const uint64_t wanted = std::max(kWantedBytes, flags.write_budget_bytes / 4);
  PENSTOCK_TRY_ASSIGN(rig, Rig::make({.paths = flags.paths,
                                      .size_bytes = flags.size_bytes,
                                      .wanted_bytes = wanted,
                                      .memory_bytes = memory_for(jobs),
                                      .engine = engine},
                                     ticking(session, "write scratch files")));
  if (!flags.emit_fio.empty()) {
    PENSTOCK_TRY_ASSIGN(fio_engine, fio_engine_of(engine));
    std::vector<FioFile> files;  // as large as ours, which have found their space
    for (size_t i = 0; i < rig->folders(); ++i) {
      files.push_back({rig->folder(i).path() + "/penstock-fio.0", rig->usable_bytes(i)});
    }
    PENSTOCK_TRY(write_new_file(flags.emit_fio, fio_job_file(jobs.front(), files, fio_engine), flags.force));
  }
  Answer answer = flags.steady ? run_steady(session, flags, *rig) : run_jobs(session, flags, jobs, *rig);
  const bool is_refused = !answer.verdict.ok() && answer.verdict.code() != Code::kInterrupted;
  if (is_refused && answer.json[flags.steady ? "steady" : "results"].empty()) return answer.verdict;
  answer.json["remarks"] = remarks(*rig);
  for (const std::string& line : remarks(*rig)) answer.text += line + "\n";
  return answer;
}

}  // namespace

Verb nvme_bench_verb() {
  auto flags = std::make_shared<Flags>();
  return {
      "nvme bench",
      "Measure drives with chosen patterns, block sizes and depths",
      "Runs a job for every combination of read share, block size and depth, with incompressible data, on all folders\n"
      "at once. Prints bandwidth, latency and CPU time, a row as each job ends; of a mixture also its reads and its\n"
      "writes apart. Interrupted, it keeps the rows of the jobs that have ended, also with --json (`interrupted`).\n\n"
      "With --steady it fills the drive's fast cache instead: it writes up to --write-budget until the rate no longer\n"
      "falls, and saves the sustained rates in the machine's profile.",
      {{"penstock nvme bench . --pattern random --block 4KiB --depth 1,32 --read-share 1", "Small random reads"},
       {"penstock nvme bench /mnt/nvme0 --steady --write-budget 200GiB", "What the drive sustains"}},
      [flags](Options& options) -> Action {
        options.paths("PATH", flags->paths, 1, "Folders, one on each drive");
        options.choice("--pattern", flags->pattern, {"sequential", "random"}, "Order of the offsets");
        options.share_list("--read-share", flags->read_shares, "Share of bytes read; the rest is written");
        options.bytes_list("--block", flags->blocks, "Block sizes");
        options.count_list("--depth", flags->depths, "Requests under way on each drive");
        engine_option(options, flags->engine);
        options.seconds("--duration", flags->seconds, "Time of each job");
        options.bytes("--size", flags->size_bytes, "Size of each scratch file; 0: up to 4GiB, as space allows");
        options.flag("--steady", flags->steady, "Measure the rates that the drives sustain");
        options.bytes("--write-budget", flags->write_budget_bytes, "The most that --steady writes to each drive");
        options.file("--profile", flags->profile, "Profile to update; default: ~/.config/penstock/profile.json");
        options.file("--emit-fio", flags->emit_fio, "Write the first job as a fio job file that runs by itself");
        options.flag("--force", flags->force, "Overwrite the file of --emit-fio");
        return [flags](Session& session) { return bench(session, *flags); };
      }};
}

}  // namespace penstock::tools
