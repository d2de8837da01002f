// Rig holds what a measurement needs: a written scratch file in each folder, and memory in 2 MiB pages filled with
// incompressible data. It runs each job on an engine set up for the job's block size and depth.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aio/host_arena.h"
#include "aio/make_io_engine.h"
#include "tiering/plan/machine_profile.h"
#include "tools/nvme/job.h"
#include "tools/nvme/scratch.h"

namespace penstock::tools {

struct RigOptions {
  std::vector<std::string> paths;
  uint64_t size_bytes = 0;  // of each scratch file; 0: up to `wanted_bytes`, as space allows
  uint64_t wanted_bytes = 4 * kGiB;
  uint64_t memory_bytes = 64 * kMiB;  // for each folder: at least block times depth of every job to come
  double layout_seconds = 0;          // after this the rest of the files stays unwritten and unused; 0: no limit
  aio::IoEngineChoice engine = aio::IoEngineChoice::automatic;
};

class Rig {
 public:
  // `tick` as for a job: making the files is one.
  static Result<std::unique_ptr<Rig>> make(const RigOptions& options, const Tick& tick);

  // On all folders at once, or on one of them.
  Result<JobResult> run(const Job& job, const Tick& tick);
  Result<JobResult> run_on(size_t folder, const Job& job, const Tick& tick);
  // Seconds that making a few MiB of writes durable takes: the median of some.
  Result<double> flush_seconds(size_t folder, const Tick& tick);

  // How the job's rate changes with the memory that its blocks lie in. `job` says how long each of kMemorySteps takes.
  // Up to kMostMemoryBytes, or as far as the rig's memory reaches.
  static constexpr int kMemorySteps = 4;
  static constexpr uint64_t kLeastMemoryBytes = 16 * kMiB, kMostMemoryBytes = kLeastMemoryBytes << (kMemorySteps - 1);
  Result<MemoryCurve> rate_by_memory(size_t folder, Job job, const Tick& tick);

  // Uses another engine from now on.
  void set_engine(aio::IoEngineChoice engine) { engine_ = engine; }
  // What ran the last job, and why nothing better did.
  const std::string& engine_used() const { return engine_used_; }

  size_t folders() const { return folders_.size(); }
  const ScratchFolder& folder(size_t index) const { return *folders_[index]; }
  std::vector<std::string> file_paths() const;
  // The part of the folder's file that has been written, which is all that jobs use.
  uint64_t usable_bytes(size_t index) const { return files_[index]->size_bytes(); }
  const aio::HostArena& memory() const { return *arena_; }
  // Of the first write of the files, which costs more than later ones.

 private:
  explicit Rig(aio::IoEngineChoice engine) : engine_(engine) {}
  Status lay_out(double seconds, const Tick& tick);
  Result<aio::MadeIoEngine> engine_for(const Job& job);
  Result<JobResult> run_on_files(const Job& job, std::span<const File* const> files, const Tick& tick);

  // The beginning of a file, as a file.
  class Part;

  aio::IoEngineChoice engine_;
  std::string engine_used_;
  std::unique_ptr<aio::HostArena> arena_;
  std::vector<std::unique_ptr<ScratchFolder>> folders_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace penstock::tools
