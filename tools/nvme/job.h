// A Job is one access pattern, held for some time: direction, block size, depth. run_job() is the one measuring loop
// that every verb of `penstock nvme` uses.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tiering/io_engine.h"
#include "tools/nvme/latency_histogram.h"

namespace penstock::tools {

enum class Pattern { sequential, random };

constexpr const char* name_of(Pattern pattern) { return pattern == Pattern::sequential ? "sequential" : "random"; }

// How reads and writes share a job's files.
enum class Mix {
  apart,  // in turns, writes half a file away from reads: as an offloader's are
  drawn,  // which comes next is drawn, both from the beginning: as fio's are
};

struct Job {
  Pattern pattern = Pattern::sequential;
  double read_share = 1;  // of the bytes
  Mix mix = Mix::apart;
  uint64_t block_bytes = kMiB;
  uint32_t depth = 16;  // requests under way on each drive
  // What its blocks lie in, one after another, for each file; 0: no more than is under way. A drive whose bytes pass
  // through the CPU is slower where that is more than a cache holds.
  uint64_t memory_bytes = 0;
  double seconds = 2;  // ends when this has passed,
  uint64_t bytes = 0;  // or when this much has been asked for; 0: no such limit
};

// "read 1MiB depth 16", "50 % read random 4KiB depth 1"
std::string name_of(const Job& job);

struct RatePoint {
  double at_s = 0;
  double gbps = 0;
};

struct JobResult {
  double seconds = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t requests = 0;
  double cpu_s = 0;                              // of all threads of this process, the kernel's work for them included
  LatencyHistogram latency;                      // of all requests,
  LatencyHistogram read_latency, write_latency;  // and of those of one direction
  std::vector<RatePoint> rate;                   // over time

  double gbps() const { return static_cast<double>(read_bytes + written_bytes) / seconds / 1e9; }
  double iops() const { return static_cast<double>(requests) / seconds; }
  double cpu_s_per_gb() const { return cpu_s / (static_cast<double>(read_bytes + written_bytes) / 1e9); }
};

// Called a few times a second with the share of the job that is done; a refusal stops the job and is its result.
using Tick = std::function<Status(double share)>;
// Of those who neither show progress nor stop.
inline Status no_tick(double) { return Status(); }

// Keeps the job's depth of requests under way on each file, out of `memory`, until it ends, and waits for the last.
// REQUIRES: `memory` holds the job's memory_bytes, and depth blocks, for each file; every file holds a block; block and
// memory are aligned; the job has a limit.
Result<JobResult> run_job(const Job& job, IoEngine& engine, std::span<const File* const> files,
                          std::span<std::byte> memory, const Tick& tick);

// Bytes that neither compress nor repeat.
void fill_incompressible(std::span<std::byte> bytes, uint64_t seed);

}  // namespace penstock::tools
