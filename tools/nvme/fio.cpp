#include "tools/nvme/fio.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/penstock/quantity.h"
#include "tools/system/interrupt.h"
#include "tools/system/subprocess.h"
#include "tools/system/system_files.h"
#include "tools/system/words.h"

namespace penstock::tools {
namespace {

constexpr double kGbpsMost = 1e6;
constexpr const char* kRunItAlone =
    "run fio by itself to see what it refuses: penstock nvme bench PATH --emit-fio job.fio && fio job.fio";

std::string direction(const Job& job) {
  const std::string random = job.pattern == Pattern::random ? "rand" : "";
  if (job.read_share == 1) return random + "read";
  if (job.read_share == 0) return random + "write";
  return random + "rw";
}

const char* name_of(FioEngine engine) {
  switch (engine) {
    case FioEngine::io_uring:
      return "io_uring";
    case FioEngine::libaio:
      return "libaio";
    case FioEngine::psync:
      return "psync";
  }
  return "?";
}

}  // namespace

std::vector<std::string> fio_settings(const Job& job, const std::vector<std::string>& files, FioWay way) {
  // fio spreads its depth over the files; ours is for each.
  const uint64_t depth = job.depth * files.size();
  const bool is_threads = way.engine == FioEngine::psync;
  std::vector<std::string> settings{
      "filename=" + joined(files, ":"),
      "rw=" + direction(job),
      text("bs=", job.block_bytes),
      text("iodepth=", is_threads ? 1 : depth),
      text("ioengine=", name_of(way.engine)),
      "direct=1",
      "norandommap=1",
      "randrepeat=0",
      // Files are written before they are measured; buffers are random once, as ours are.
      "overwrite=1",
      "scramble_buffers=0",
      "time_based=1",
      text("runtime=", fixed(job.seconds * 1000, 0), "ms"),
  };
  if (is_threads) settings.insert(settings.end(), {"thread=1", text("numjobs=", depth)});
  if (way.engine == FioEngine::io_uring) settings.insert(settings.end(), {"fixedbufs=1", "registerfiles=1"});
  if (job.read_share > 0 && job.read_share < 1) settings.push_back(text("rwmixread=", fixed(job.read_share * 100, 0)));
  if (way.wakes == FioWakes::for_several && depth >= 8 && !is_threads) {
    settings.push_back(text("iodepth_batch_complete_min=", depth / 4));
  }
  if (way.pages == FioPages::huge) {
    settings.push_back("iomem=mmaphuge");
    settings.push_back("hugepage-size=2m");
  } else {
    settings.push_back("iomem_align=2m");
  }
  return settings;
}

std::string fio_job_file(const Job& job, const std::vector<FioFile>& files, FioEngine engine) {
  // Ours lie in transparent 2 MiB pages, which fio does not ask for, and malloc() only where it is told to.
  std::string out = text("; ", name_of(job),
                         "\n; With buffers in 2 MiB pages, as ours are (glibc 2.35 or newer):"
                         "\n;   GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio FILE\n[global]\ngroup_reporting=1\n");
  for (const std::string& setting : fio_settings(job, {""}, {.pages = FioPages::small, .engine = engine})) {
    if (!setting.starts_with("filename=")) out += setting + "\n";
  }
  for (size_t i = 0; i < files.size(); ++i) {
    out += text("[drive", i, "]\nfilename=", files[i].path, "\n");
    if (engine == FioEngine::psync) {
      const uint64_t part =
          std::max(job.block_bytes, files[i].size_bytes / job.depth / job.block_bytes * job.block_bytes);
      out += text("size=", part, "\noffset_increment=", part, "\n");
    } else {
      out += text("size=", files[i].size_bytes, "\n");
    }
  }
  return out;
}

namespace {

// 0 where it is absent or no number.
double number_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

}  // namespace

Result<FioResult> parse_fio_output(const std::string& printed) {
  auto refusal = [](const char* why) {
    return Status(Code::kEnvironment, text("run program: fio: ", why), kRunItAlone);
  };
  const size_t begin = printed.find('{');  // notes may stand before it
  if (begin == std::string::npos) return refusal("it printed no JSON");
  const auto json = nlohmann::json::parse(printed.substr(begin), nullptr, false);
  const auto jobs = json.find("jobs");
  if (jobs == json.end() || !jobs->is_array() || jobs->empty()) return refusal("it printed no results");
  const auto& job = jobs->front();
  if (number_in(job, "error") != 0) return refusal("its job ended with an error");

  double bytes = 0, runtime_s = 0;
  for (const char* way : {"read", "write"}) {
    const auto found = job.find(way);
    if (found == job.end()) return refusal("it printed no results");
    bytes += number_in(*found, "io_bytes");
    runtime_s = std::max(runtime_s, number_in(*found, "runtime") / 1e3);
  }
  if (bytes <= 0 || runtime_s <= 0) return refusal("it moved no bytes");
  const double cpu_s = (number_in(job, "usr_cpu") + number_in(job, "sys_cpu")) / 100 * runtime_s;
  const FioResult result{bytes / runtime_s / 1e9, cpu_s / (bytes / 1e9)};
  const bool makes_sense = result.gbps < kGbpsMost && result.cpu_s_per_gb >= 0 && std::isfinite(result.cpu_s_per_gb);
  return makes_sense ? Result<FioResult>(result) : refusal("it printed impossible rates");
}

Result<FioResult> run_fio(const Job& job, const std::vector<std::string>& files, FioWay way) {
  std::vector<std::string> words{"fio", "--name=penstock", "--output-format=json", "--allow_file_create=0"};
  for (const std::string& setting : fio_settings(job, files, way)) words.push_back("--" + setting);
  const Result<std::string> printed = run_program(words);
  PENSTOCK_TRY(check_interrupted());  // a signal from a terminal reaches fio as well
  if (!printed.ok()) return Status(printed.status().code(), printed.status().message(), kRunItAlone);
  return parse_fio_output(*printed);
}

Result<std::string> fio_version() {
  const Result<std::string> version = run_program({"fio", "--version"});
  if (version.ok()) return trimmed(*version);
  return Status(Code::kEnvironment, version.status().message(), "sudo apt install fio");
}

}  // namespace penstock::tools
