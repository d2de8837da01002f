#include "tests/support/recorded_drives.h"

#include "tests/support/dying_backend.h"
#include "tests/support/faulty_backend.h"

namespace penstock::aio {
namespace {

constexpr uint32_t kNoDrive = ~uint32_t{0};

}  // namespace

RecordedDrives::RecordedDrives(std::vector<MemoryFile::Bytes> images, uint32_t rank)
    : rank_(rank), before_(std::move(images)), others_(std::make_shared<MemoryFile>("another", 4096, kNoDrive)) {
  for (uint32_t drive = 0; drive < before_.size(); ++drive) {
    folders_.push_back(std::make_shared<MemoryFolder>("/drive" + std::to_string(drive), drive));
    drives_.push_back(std::make_shared<MemoryFile>("drive", 4096, drive));
  }
}

void RecordedDrives::put_files() {
  for (uint32_t drive = 0; drive < folders_.size(); ++drive)
    folders_[drive]->put(store_file_name(rank_), before_[drive]);
}

std::unique_ptr<IoBackend> RecordedDrives::make_backend(uint64_t seed, uint64_t requests) {
  FaultOptions late;
  late.seed = seed;
  late.delay_chance = 0.5;
  auto faulty = std::make_unique<FaultyBackend>(std::make_unique<MemoryBackend>(), late);
  return std::make_unique<DyingBackend>(recorded(std::move(faulty)), requests);
}

std::unique_ptr<IoBackend> RecordedDrives::recorded(std::unique_ptr<IoBackend> inner) {
  return std::make_unique<RecordingBackend>(std::move(inner), log_);
}

void RecordedDrives::life_ended() {
  for (; kept_ < log_.size(); ++kept_) {
    const File* file = log_[kept_].file;
    log_[kept_].file = others_.get();
    for (uint32_t drive = 0; drive < folders_.size(); ++drive) {
      if (folders_[drive]->opened(store_file_name(rank_), file)) log_[kept_].file = drives_[drive].get();
    }
  }
  for (const auto& folder : folders_) folder->forget_opened();
}

uint64_t RecordedDrives::acknowledged(size_t events) const {
  uint64_t newest = 0;
  for (const auto& [from, step] : acknowledged_) {
    if (from <= events) newest = step;
  }
  return newest;
}

RecordedDrives RecordedDrives::after(const Crash& crash) const {
  std::vector<MemoryFile::Bytes> images;
  for (uint32_t drive = 0; drive < folders_.size(); ++drive) {
    images.push_back(crash_image(log_, *drives_[drive], before_[drive], crash));
  }
  RecordedDrives drives(std::move(images), rank_);
  drives.put_files();
  drives.acknowledged_.push_back({0, acknowledged(crash.events)});
  return drives;
}

}  // namespace penstock::aio
