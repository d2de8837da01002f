// fio, run on the same file in the same way as a Job: what ours is compared with, and what --emit-fio writes down.
#pragma once

#include <string>
#include <vector>

#include "tiering/status.h"
#include "tools/nvme/job.h"

namespace penstock::tools {

// What fio's buffers lie in.
enum class FioPages { huge, small };
// How many requests end before fio, which waits, wakes: one, or a quarter of those under way, as our engine does.
enum class FioWakes { for_each, for_several };

struct FioWay {
  FioPages pages = FioPages::huge;
  FioWakes wakes = FioWakes::for_several;
};

// fio's settings for the job on existing files: io_uring with fixed buffers and registered files.
std::vector<std::string> fio_settings(const Job& job, const std::vector<std::string>& files, FioWay way);

// The job file that does the same with new files of `size_bytes` each, which fio makes and writes first.
std::string fio_job_file(const Job& job, const std::vector<std::string>& files, uint64_t size_bytes);

struct FioResult {
  double gbps = 0;
  double cpu_s_per_gb = 0;  // fio's own figure: user and system time of its job
};

// REQUIRES: the files exist, are written and are larger than a block.
Result<FioResult> run_fio(const Job& job, const std::vector<std::string>& files, FioWay way);

// Its figures out of what `fio --output-format=json` printed.
Result<FioResult> parse_fio_output(const std::string& printed);

// "fio-3.33", or a refusal that says how to install it.
Result<std::string> fio_version();

}  // namespace penstock::tools
