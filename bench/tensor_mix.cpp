// Do thousands of tensors of all sizes move at the rate of one large file?
//
// On paper: the state of a transformer of 1.3B parameters (24 layers, 2048 wide) is 99.9 % matrices of 16 to 64 MiB,
// but two thirds of its segments are vectors of 8 to 32 KiB. With requests of 1 MiB and a depth of 32 the vectors add
// about 5 % to the number of requests, so 0.95 of the large file's rate or better.
//
//   build/bench/tensor_mix [FOLDER] [--quick] [--json]
#include "bench/figure.h"
#include "bench/scratch_files.h"
#include "bench/support/flags.h"

namespace penstock::bench {
namespace {

struct Segment {
  uint64_t offset_bytes;
  uint64_t length_bytes;
};

// One role after another (master, momentum, variance, all fp32), and in it the model's tensors in order.
std::vector<Segment> segments_of_model(uint64_t layers, uint64_t width, uint64_t file_bytes) {
  const uint64_t tensors[] = {width, width, 3 * width * width, 3 * width, width * width,     width,
                              width, width, 4 * width * width, 4 * width, 4 * width * width, width};
  std::vector<Segment> segments;
  uint64_t offset_bytes = 0;
  for (int role = 0; role < 3; ++role) {
    for (uint64_t layer = 0; layer < layers; ++layer) {
      for (uint64_t elements : tensors) {
        const uint64_t bytes = round_up(elements * 4, kAlignmentBytes);
        if (offset_bytes + bytes > file_bytes) offset_bytes = 0;  // the file is smaller than the state: the same again
        segments.push_back({offset_bytes, bytes});
        offset_bytes += bytes;
      }
    }
  }
  return segments;
}

enum class Direction { read, write };

// Small segments and large ones from a pool each, as a store has it.
struct Memory {
  Memory(aio::HostArena& arena, uint64_t small_bytes, uint64_t large_bytes)
      : small(Tier::host, must(arena.take("small", 128 * small_bytes)), small_bytes),
        large(Tier::host, must(arena.take("large", 4 * large_bytes)), large_bytes) {}
  std::optional<Lease> lease(uint64_t bytes) {
    return bytes <= small.piece_bytes() ? small.try_lease() : large.try_lease();
  }
  BufferPool small;
  BufferPool large;
};

double mix_gbps(IoEngine& engine, const File& file, Memory& memory, const std::vector<Segment>& segments,
                Direction direction, double seconds) {
  size_t next = 0;
  return stream_gbps(engine, seconds, [&](const Ended& ended) -> uint64_t {
    const Segment& segment = segments[next % segments.size()];
    std::optional<Lease> lease = memory.lease(segment.length_bytes);
    if (!lease) return 0;
    const Extent extent{&file, segment.offset_bytes, 0, segment.length_bytes};
    if (direction == Direction::read) {
      engine.read({&extent, 1}, *std::move(lease), next).then(ended);
    } else {
      engine.write({&extent, 1}, *std::move(lease), next).then(ended);
    }
    ++next;
    return segment.length_bytes;
  });
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  using namespace penstock;
  using namespace penstock::bench;
  Flags flags("tensor_mix", "Do thousands of tensors of all sizes move at the rate of one large file?");
  std::string folder = ".";
  flags.folder(folder, "Folder for the scratch file");
  flags.parse(argc, argv);
  const bool quick = flags.quick();
  const uint64_t width = quick ? 512 : 2048, layers = quick ? 4 : 24;
  const uint64_t large_bytes = 4 * width * width * 4, small_bytes = 4 * width * 4;
  const uint64_t file_bytes = quick ? 64 * kMiB : 6 * kGiB;
  const double seconds = quick ? 0.1 : 2.5;
  const int rounds = 5;

  aio::MadeIoEngine made = must(aio::make_io_engine());
  std::unique_ptr<aio::HostArena> arena = must(aio::HostArena::make(4 * large_bytes + 128 * small_bytes + 4 * kMiB));
  made.engine->register_memory(arena->bytes());
  Memory memory(*arena, small_bytes, large_bytes);
  const auto file = scratch_file(folder, file_bytes, *made.engine, memory.large);
  const std::vector<Segment> mix = segments_of_model(layers, width, file_bytes);
  std::vector<Segment> large;
  for (uint64_t at = 0; at + large_bytes <= file_bytes; at += large_bytes) large.push_back({at, large_bytes});
  std::fprintf(stderr, "%zu segments of %s to %s; %s; %s\n", mix.size(), bytes_text(4 * width).c_str(),
               bytes_text(large_bytes).c_str(), made.engine->description().c_str(), arena->description().c_str());

  for (Direction direction : {Direction::read, Direction::write}) {
    Figure figure{
        "tensor_mix", direction == Direction::read ? "read" : "write", "GB/s", "one large file", 0.93, {}, {}};
    for (int round = 0; round < rounds; ++round) {
      figure.ours.push_back(mix_gbps(*made.engine, *file, memory, mix, direction, seconds));
      figure.theirs.push_back(mix_gbps(*made.engine, *file, memory, large, direction, seconds));
    }
    print(figure, flags.json());
  }
  made.engine->unregister_file(*file);
}
