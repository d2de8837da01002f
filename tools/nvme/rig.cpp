#include "tools/nvme/rig.h"

#include <algorithm>
#include <chrono>

#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kSeed = 20240601;
constexpr Job kLayoutJob{.read_share = 0, .block_bytes = ScratchFolder::kUnitBytes, .depth = 4, .seconds = 0};
constexpr int kFlushes = 7;
constexpr uint64_t kFlushedBytes = 16 * kMiB;

}  // namespace

class Rig::Part final : public File {
 public:
  Part(const File& whole, uint64_t size_bytes) : whole_(whole), size_bytes_(size_bytes) {}
  const std::string& path() const override { return whole_.path(); }
  uint64_t size_bytes() const override { return size_bytes_; }
  uint64_t alignment_bytes() const override { return whole_.alignment_bytes(); }
  uint32_t drive() const override { return whole_.drive(); }
  int descriptor() const override { return whole_.descriptor(); }

 private:
  const File& whole_;
  const uint64_t size_bytes_;
};

Result<std::unique_ptr<Rig>> Rig::make(const RigOptions& options, const Tick& tick) {
  PENSTOCK_TRY(refuse_repeated_folders("measure folder", options.paths));
  std::unique_ptr<Rig> rig(new Rig(options.engine));
  for (const std::string& path : options.paths) {
    PENSTOCK_TRY_ASSIGN(folder, ScratchFolder::open(path));
    rig->folders_.push_back(std::move(folder));
  }
  const uint64_t each = std::max(options.memory_bytes, kLayoutJob.block_bytes * kLayoutJob.depth);
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(round_up(each * rig->folders(), 2 * kMiB)));
  rig->arena_ = std::move(arena);
  fill_incompressible(rig->arena_->bytes(), kSeed);
  for (auto& folder : rig->folders_) PENSTOCK_TRY(folder->make_file(options.size_bytes, options.wanted_bytes));
  PENSTOCK_TRY(rig->lay_out(options.layout_seconds, tick));
  return rig;
}

Status Rig::lay_out(double seconds, const Tick& tick) {
  for (const auto& folder : folders_) {
    Job job = kLayoutJob;
    job.bytes = folder->file().size_bytes();
    job.seconds = seconds / static_cast<double>(folders());
    const auto placed = static_cast<double>(files_.size());
    const File* const file = &folder->file();
    PENSTOCK_TRY_ASSIGN(result, run_on_files(job, {&file, 1}, [&](double share) {
                          return tick((placed + share) / static_cast<double>(folders()));
                        }));
    files_.push_back(std::make_unique<Part>(*file, std::min(result.written_bytes, file->size_bytes())));
  }
  return {};
}

std::vector<std::string> Rig::file_paths() const {
  std::vector<std::string> paths;
  for (const auto& folder : folders_) paths.push_back(folder->file().path());
  return paths;
}

Result<aio::MadeIoEngine> Rig::engine_for(const Job& job) {
  aio::IoEngineOptions options;
  options.drive.block_bytes = static_cast<uint32_t>(job.block_bytes);
  // Two folders may share a drive, and so its queue.
  options.drive.depth = job.depth * static_cast<uint32_t>(folders());
  return aio::make_io_engine(engine_, options);
}

Result<JobResult> Rig::run_on_files(const Job& job, std::span<const File* const> files, const Tick& tick) {
  for (const File* file : files) {
    if (file->size_bytes() >= job.block_bytes) continue;
    return Status(Code::kUsage,
                  text("run job: ", name_of(job), ": the block is larger than the scratch file, ",
                       bytes_text(file->size_bytes())),
                  text("--size ", bytes_flag_text(job.block_bytes), ", or --block ",
                       bytes_flag_text(std::min<uint64_t>(file->size_bytes(), kMiB))));
  }
  PENSTOCK_TRY_ASSIGN(made, engine_for(job));
  made.engine->register_memory(arena_->bytes());
  for (const File* file : files) made.engine->register_file(*file);
  engine_used_ = made.engine->description();
  Result<JobResult> result = run_job(job, *made.engine, files, arena_->bytes(), tick);
  for (const File* file : files) made.engine->unregister_file(*file);
  return result;
}

Result<JobResult> Rig::run(const Job& job, const Tick& tick) {
  std::vector<const File*> files;
  for (const auto& file : files_) files.push_back(file.get());
  return run_on_files(job, files, tick);
}

Result<JobResult> Rig::run_on(size_t folder, const Job& job, const Tick& tick) {
  const File* const file = files_[folder].get();
  return run_on_files(job, {&file, 1}, tick);
}

Result<MemoryCurve> Rig::rate_by_memory(size_t folder, Job job, const Tick& tick) {
  std::vector<std::pair<uint64_t, double>> rates;
  const uint64_t each = arena_->bytes().size() / folders();
  for (int step = 0; step < kMemorySteps; ++step) {
    if (step == 0 || each >= kLeastMemoryBytes << step) rates.push_back({kLeastMemoryBytes << step, 0});
  }
  double best = 0, done = 0;
  // The better of two passes: a moment's disturbance is not taken for a property of the memory.
  job.seconds /= 2;
  const size_t runs = 2 * rates.size();
  for (size_t i = 0; i < runs; ++i) {
    auto& [memory_bytes, rate] = rates[i % rates.size()];
    job.memory_bytes = std::min(memory_bytes, each);
    PENSTOCK_TRY_ASSIGN(
        result, run_on(folder, job, [&](double share) { return tick((done + share) / static_cast<double>(runs)); }));
    rate = std::max(rate, result.gbps());
    best = std::max(best, rate);
    done += 1;
  }
  for (auto& rate : rates) rate.second /= best;
  return MemoryCurve(std::move(rates));
}

Result<double> Rig::flush_seconds(size_t folder, const Tick& tick) {
  const File& file = *files_[folder];
  const Job job{.read_share = 0, .depth = 4, .seconds = 0, .bytes = kFlushedBytes};
  PENSTOCK_TRY_ASSIGN(made, engine_for(job));
  std::vector<double> seconds;
  const File* const one = &file;
  for (int i = 0; i < kFlushes; ++i) {
    PENSTOCK_TRY_ASSIGN(written, run_job(job, *made.engine, {&one, 1}, arena_->bytes(), tick));
    (void)written;
    const auto before = std::chrono::steady_clock::now();
    PENSTOCK_TRY_ASSIGN(empty, made.engine->flush(file).wait());
    (void)empty;
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + kFlushes / 2, seconds.end());
  return seconds[kFlushes / 2];
}

}  // namespace penstock::tools
