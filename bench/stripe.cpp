// Do drives of unequal speed together reach the sum of their rates?
//
// On paper: every row of the stripe gives each drive as much as it moves in the same time, so yes. But the rows under
// way must outlast the moments in which a drive does nothing. A throttled loop drive pauses for milliseconds: with 16
// rows under way, 14 ms of work, a fast drive and one of a tenth of its speed lose 6 to 7 %, with 32 rows 5 % and with
// 64 rows 2 to 3 %.
//
//   build/bench/stripe FOLDER FOLDER... [--quick] [--json]      such as the disk and a drive of tools/test-drives
#include <filesystem>
#include <numeric>

#include "aio/stripe_set.h"
#include "bench/figure.h"
#include "bench/scratch_files.h"
#include "bench/support/flags.h"

namespace penstock::bench {
namespace {

enum class Direction { read, write };

constexpr uint64_t kTransferBytes = aio::StripeSet::kRowBytes;
constexpr uint64_t kWindowBytes = 64 * kTransferBytes;

class Drives {
 public:
  Drives(const std::vector<std::string>& folders, uint64_t file_bytes)
      : made_(must(aio::make_io_engine())),
        arena_(must(aio::HostArena::make(kWindowBytes))),
        pool_(Tier::host, must(arena_->take("transfers", kWindowBytes)), kTransferBytes) {
    made_.engine->register_memory(arena_->bytes());
    for (const std::string& folder : folders) {
      files_.push_back(scratch_file(folder, file_bytes, *made_.engine, pool_));
      views_.push_back(files_.back().get());
    }
  }
  ~Drives() {
    for (const File* file : views_) made_.engine->unregister_file(*file);
  }

  size_t size() const { return views_.size(); }

  double alone_gbps(size_t drive, Direction direction, double seconds) {
    const aio::StripeSet alone(std::vector<double>{1.0});
    return gbps({&views_[drive], 1}, alone, direction, seconds);
  }
  double together_gbps(const aio::StripeSet& set, Direction direction, double seconds) {
    return gbps(views_, set, direction, seconds);
  }

 private:
  double gbps(std::span<const File* const> files, const aio::StripeSet& set, Direction direction, double seconds) {
    uint64_t rows = ~uint64_t{0};
    for (size_t d = 0; d < files.size(); ++d) rows = std::min(rows, files[d]->size_bytes() / set.part_bytes(d));
    uint64_t row = 0;
    std::vector<Extent> extents;
    return stream_gbps(*made_.engine, seconds, [&](const Ended& ended) -> uint64_t {
      std::optional<Lease> lease = pool_.try_lease();
      if (!lease) return 0;
      extents.clear();
      set.map(files, row % rows * set.row_bytes(), kTransferBytes, 0, extents);
      if (direction == Direction::read) {
        made_.engine->read(extents, *std::move(lease), row).then(ended);
      } else {
        made_.engine->write(extents, *std::move(lease), row).then(ended);
      }
      ++row;
      return kTransferBytes;
    });
  }

  aio::MadeIoEngine made_;
  std::unique_ptr<aio::HostArena> arena_;
  BufferPool pool_;
  std::vector<std::unique_ptr<aio::DirectFile>> files_;
  std::vector<const File*> views_;
};

// " 2832:1264 KiB"
std::string parts_text(const aio::StripeSet& set, size_t drives) {
  std::string parts;
  for (size_t d = 0; d < drives; ++d) parts += (d == 0 ? " " : ":") + std::to_string(set.part_bytes(d) / kKiB);
  return parts + " KiB";
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock;
  using namespace penstock::bench;
  Flags flags("stripe", "Do drives of unequal speed together reach the sum of their rates?");
  std::vector<std::string> folders = {".", "/run/penstock-test-drives/third"};
  flags.folders("FOLDER", folders, "Folders, one on each drive, such as the disk and a drive of tools/test-drives");
  flags.parse(argc, argv);
  for (const std::string& folder : folders) {
    if (std::filesystem::is_directory(folder)) continue;
    std::fprintf(stderr, "stripe: skipped: there is no folder %s; as root: tools/test-drives up\n", folder.c_str());
    return 0;
  }

  const double seconds = flags.quick() ? 0.1 : 2.0;
  const int rounds = 5;
  Drives drives(folders, flags.quick() ? 64 * kMiB : 768 * kMiB);
  for (Direction direction : {Direction::read, Direction::write}) {
    const auto alone = [&] {
      std::vector<double> rates(drives.size());
      for (size_t d = 0; d < drives.size(); ++d) rates[d] = drives.alone_gbps(d, direction, seconds);
      return rates;
    };
    const auto sum = [](const std::vector<double>& rates) { return std::accumulate(rates.begin(), rates.end(), 0.0); };
    Figure figure{"stripe", direction == Direction::read ? "read" : "write", "GB/s", "the sum of the drives", 0.95, {},
                  {}};
    // A drive that drifts does so for both: each alone before and after all together.
    std::vector<double> before = alone();
    for (int round = 0; round < rounds; ++round) {
      const aio::StripeSet set(before);
      figure.ours.push_back(drives.together_gbps(set, direction, seconds));
      std::vector<double> after = alone();
      figure.theirs.push_back((sum(before) + sum(after)) / 2);
      if (round == 0) figure.name += parts_text(set, drives.size());
      before = std::move(after);
    }
    print(figure, flags.json());
  }
}
