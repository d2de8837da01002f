#include "tests/support/crash_image.h"

#include <algorithm>
#include <random>

#include "tiering/check.h"

namespace penstock::aio {
namespace {

constexpr size_t kNever = ~size_t{0};

// For each event that submits a write: the last flush that can have made it safe must have been submitted after this
// event; kNever for a write that had not ended.
std::vector<size_t> ends_of(const IoLog& log, size_t events) {
  std::vector<size_t> ends(events, kNever);
  for (size_t i = 0; i < events; ++i) {
    if (log[i].kind == IoEvent::Kind::write_ended) ends[log[i].submitted] = i;
  }
  return ends;
}

// The newest submission of a flush of the drive that has ended well; everything that ended before it is safe.
size_t last_good_flush(const IoLog& log, size_t events, uint32_t drive) {
  size_t last = 0;
  for (size_t i = 0; i < events; ++i) {
    if (log[i].kind != IoEvent::Kind::flush_ended || log[i].result < 0 || log[i].file->drive() != drive) continue;
    last = std::max(last, log[i].submitted);
  }
  return last;
}

}  // namespace

std::vector<std::byte> crash_image(const IoLog& log, const File& file, std::span<const std::byte> before,
                                   const Crash& crash) {
  const size_t events = std::min(crash.events, log.size());
  const std::vector<size_t> ends = ends_of(log, events);
  const size_t safe_before = last_good_flush(log, events, file.drive());
  std::mt19937_64 random(crash.seed);

  std::vector<std::byte> image(before.begin(), before.end());
  for (size_t i = 0; i < events; ++i) {
    const IoEvent& write = log[i];
    if (write.kind != IoEvent::Kind::write_submitted || write.file != &file) continue;
    CHECK(write.offset_bytes + write.data.size() <= image.size(), "a write behind the end of the image");
    // A write that has failed may have left anything of itself, like one that has not ended.
    const bool ended_well = ends[i] != kNever && log[ends[i]].result == static_cast<int64_t>(write.data.size());
    const bool safe = ended_well && ends[i] < safe_before;
    for (size_t at = 0; at < write.data.size(); at += kAlignmentBytes) {
      const bool arrived =
          safe || crash.unsafe == Unsafe::kept || (crash.unsafe == Unsafe::chance && random() % 2 == 0);
      if (!arrived) continue;
      const size_t length = std::min<size_t>(kAlignmentBytes, write.data.size() - at);
      std::copy_n(write.data.begin() + static_cast<ptrdiff_t>(at), length,
                  image.begin() + static_cast<ptrdiff_t>(write.offset_bytes + at));
    }
  }
  return image;
}

}  // namespace penstock::aio
