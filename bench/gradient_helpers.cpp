// Do the gradient helpers and checksums run at the speed of memory?
//
// On paper: a core reads some 17 GB/s, so a norm over bf16 takes 0.115 ns an element. Accumulating bf16 into fp32 moves
// 10 B, 6 of them reads: 0.32 ns. A cast reads 2 B and writes 4. Checksums of bytes in the first-level cache cost 6
// vector operations per 64 B, two at a time: 3 cycles, 64 GB/s at 3 GHz.
//
// The limit of each is the fastest of several loops over the same streams (memory_limit.h); for a cast, a copy of its
// own bytes.
//
//   build/bench/gradient_helpers [--threads N] [--quick] [--json]
#include <chrono>
#include <functional>

#include "bench/figure.h"
#include "bench/memory_limit.h"
#include "bench/support/flags.h"
#include "cpu_optim/checksum.h"
#include "cpu_optim/gradient.h"
#include "cpu_optim/update_workers.h"

namespace penstock::bench {
namespace {

constexpr int kRepeats = 5;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Bench {
  uint64_t elements;
  bool json;
  cpu_optim::UpdateWorkers workers;
  std::byte* narrow = huge_memory(elements * 2);
  std::byte* wide = huge_memory(elements * 4);
  cpu_optim::GradientKernels kernels;

  Bench(uint64_t count, uint32_t threads, bool as_json) : elements(count), json(as_json), workers({threads, {}}) {
    for (uint64_t i = 0; i < elements; ++i) {
      const float g = 1e-5f * static_cast<float>(static_cast<int>(i * 2654435761u >> 16 & 1023) - 512);
      std::memcpy(wide + i * 4, &g, 4);
    }
    kernels.cast(Dtype::fp32, wide, Dtype::bf16, narrow, elements);
  }

  void compare(const std::string& name, const ByteMix& mix, double goal,
               const std::function<void(uint64_t begin, uint64_t end)>& work) {
    const auto gbps = [&](const auto& body) {
      return mix.bytes_per_element() * static_cast<double>(elements) /
             (1e9 * seconds_of([&] { workers.for_pieces(elements, kBlockElements, body); }));
    };
    MoveShape best = kMoveShapes[0];
    double most = 0;
    for (const MoveShape shape : kMoveShapes) {
      const double here = gbps([&](uint64_t begin, uint64_t end) { move(mix, shape, begin, end); });
      if (here > most) most = here, best = shape;
    }
    Figure figure{"gradient_helpers", name, "GB/s", "limit", goal, {}, {}};
    for (int i = 0; i < kRepeats; ++i) {
      figure.theirs.push_back(gbps([&](uint64_t begin, uint64_t end) { move(mix, best, begin, end); }));
      figure.ours.push_back(gbps(work));
    }
    print(figure, json);
  }
};

// Bytes of a first cache, again and again, against the 60 GB/s that are asked for.
void checksum_from_cache(bool json) {
  alignas(64) static std::byte bytes[16 * 1024];
  constexpr int kRounds = 20000;
  const ChecksumFunction checksum = cpu_optim::checksum_function();
  Figure figure{"gradient_helpers", "checksum of 16 KiB in cache", "GB/s", "asked", 1.0, {}, {}};
  for (int i = 0; i < kRepeats; ++i) {
    uint64_t seen = 0;
    const double s = seconds_of([&] {
      for (int round = 0; round < kRounds; ++round) seen += checksum({bytes, sizeof bytes}, seen);
    });
    asm volatile("" ::"r"(seen));
    figure.ours.push_back(static_cast<double>(sizeof bytes) * kRounds / s / 1e9);
    figure.theirs.push_back(60);
  }
  print(figure, json);
}

int run(int argc, char** argv) {
  Flags flags("gradient_helpers", "Do the gradient helpers and checksums run at the speed of memory?");
  uint64_t threads = 1;
  flags.options().count("--threads", threads, "Helper threads");
  flags.parse(argc, argv);

  checksum_from_cache(flags.json());
  Bench bench(flags.quick() ? 4 * 1024 * 1024 : 384ull * 1024 * 1024, static_cast<uint32_t>(threads), flags.json());
  std::vector<double> sums(ceil_div(bench.elements, kBlockElements));
  bench.compare("norm of bf16", {.changed = {}, .read = {{bench.narrow, 2}}, .written = {}}, 0.9,
                [&](uint64_t begin, uint64_t end) {
                  bench.kernels.square_sums(Dtype::bf16, bench.narrow + begin * 2, end - begin,
                                            std::span(sums).subspan(begin / kBlockElements));
                });
  bench.compare("cast of bf16 to fp32", {.changed = {}, .read = {{bench.narrow, 2}}, .written = {{bench.wide, 4}}}, 0.9,
                [&](uint64_t begin, uint64_t end) {
                  bench.kernels.cast(Dtype::bf16, bench.narrow + begin * 2, Dtype::fp32, bench.wide + begin * 4,
                                     end - begin);
                });
  bench.compare("cast of fp32 to bf16", {.changed = {}, .read = {{bench.wide, 4}}, .written = {{bench.narrow, 2}}}, 0.9,
                [&](uint64_t begin, uint64_t end) {
                  bench.kernels.cast(Dtype::fp32, bench.wide + begin * 4, Dtype::bf16, bench.narrow + begin * 2,
                                     end - begin);
                });
  std::memset(bench.wide, 0, bench.elements * 4);
  std::memset(bench.narrow, 0, bench.elements * 2);
  bench.compare("accumulate bf16 into fp32", {.changed = {{bench.wide, 4}}, .read = {{bench.narrow, 2}}, .written = {}},
                0.9, [&](uint64_t begin, uint64_t end) {
                  bench.kernels.accumulate(Dtype::bf16, bench.narrow + begin * 2,
                                           reinterpret_cast<float*>(bench.wide) + begin, end - begin);
                });
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) { return penstock::bench::run(argc, argv); }
