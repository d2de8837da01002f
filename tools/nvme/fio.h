// fio, run on the same file in the same way as a Job: for comparison with our engine, and for --emit-fio.
#pragma once

#include <string>
#include <vector>

#include "tiering/status.h"
#include "tools/nvme/job.h"

namespace penstock::tools {

// The pages of fio's buffers.
enum class FioPages { huge, small };
// How many completions fio waits for: one, or a quarter of the requests under way, as our engine does.
enum class FioWakes { for_each, for_several };

// What fio does I/O by: what our engine of that name does it by. For our `threads` that is as many jobs of `psync`,
// each on its own part of the file: its `posixaio` has one thread for each file.
enum class FioEngine { io_uring, libaio, psync };

struct FioWay {
  FioPages pages = FioPages::huge;
  FioWakes wakes = FioWakes::for_several;
  FioEngine engine = FioEngine::io_uring;
};

// fio's settings for the job on existing files: io_uring with fixed buffers and registered files.
std::vector<std::string> fio_settings(const Job& job, const std::vector<std::string>& files, FioWay way);

struct FioFile {
  std::string path;
  uint64_t size_bytes = 0;
};

// The job file that does the same on new files, one for each drive and each with the job's depth. fio creates and
// writes them first. Runs on any machine that has the engine; its first lines say how its buffers come to lie in 2 MiB
// pages, without which a drive that a hypervisor provides may give half of its rate.
std::string fio_job_file(const Job& job, const std::vector<FioFile>& files, FioEngine engine = FioEngine::io_uring);

struct FioResult {
  double gbps = 0;
  double cpu_s_per_gb = 0;  // fio's own figure: user and system time of its job
};

// REQUIRES: the files exist, are written and are larger than a block.
Result<FioResult> run_fio(const Job& job, const std::vector<std::string>& files, FioWay way);

// The figures in the output of `fio --output-format=json`.
Result<FioResult> parse_fio_output(const std::string& printed);

// Such as "fio-3.33"; the error says how to install it.
Result<std::string> fio_version();

}  // namespace penstock::tools
