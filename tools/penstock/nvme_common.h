// Shared by the verbs of `penstock nvme`: progress, paths and formatting.
#pragma once

#include <string>
#include <vector>

#include "tools/nvme/rig.h"
#include "tools/penstock/verb.h"

namespace penstock::tools {

// Shows `what` as progress, from `begin` to `end` of the whole, and stops when the user asks to.
Tick ticking(Session& session, const std::string& what, double begin = 0, double end = 1);

// One line for each thing about folders and memory that the user should know before reading figures.
std::vector<std::string> remarks(const Rig& rig);

// How a verb ended whose answer has what it had measured by then: `kept` says what that is, "2 of 9 jobs were
// measured".
void add_end(Answer& answer, const Status& verdict, const std::string& kept);

// Microseconds with as many digits as matter.
std::string microseconds(double value);

// Refuses blocks and depths that no drive takes: blocks are multiples of 4 KiB up to 1 GiB, depths at most 4096.
Status check_job_size(uint64_t block_bytes, uint64_t depth);

// Refuses a time in which nothing can be measured.
Status check_duration(double seconds);

// The name of an engine: auto, io_uring, libaio, threads.
void engine_option(Options& options, std::string& into);

// Writes a new file, or a refusal if there is one and it was not to be replaced.
Status write_new_file(const std::string& path, const std::string& content, bool force);

}  // namespace penstock::tools
