// Does a Device copy as fast as the simplest loop, also in both directions at once, and do its kernels run at memory
// speed?
//
// On paper: a copy of 16 MiB takes 0.3 ms at 55 GB/s (PCIe 5 x16), and the host needs some 10 us to issue it, which
// overlaps: 100 % of the plain loop. Kernels move 2 to 28 B an element and compute little, so they reach the speed of a
// copy within the device, less the tail of the last wave. On a host device the copy is memcpy on another thread: 100 %
// again. Its kernels are the reference loops and have no goal.
//
//   build/bench/device [--quick] [--json]      CUDA if there is a GPU, else the host device; it prints which
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "bench/figure.h"
#include "bench/plain_copies.h"
#include "bench/support/flags.h"
#include "gpu/open_device.h"

namespace penstock::bench {
namespace {

struct Sizes {
  uint64_t piece_bytes = 16 * kMiB;
  uint64_t pieces = 256;  // of one measurement
  uint64_t elements = 256 * kMiB;
  int rounds = 7;
};

double seconds_of(const std::function<void()>& work) {
  auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename T>
T must(Result<T> result) {
  CHECK(result.ok(), result.status().message());
  return std::move(result).value();
}

// 2 MiB pages where the system gives them, touched once, as the engine's arena is.
std::span<std::byte> host_arena(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED, "no memory for ", bytes, " B");
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return {static_cast<std::byte*>(memory), bytes};
}

class DeviceBench {
 public:
  DeviceBench(Device& device, const Sizes& sizes, bool json)
      : device_(device), sizes_(sizes), json_(json), arena_(host_arena(4 * sizes.piece_bytes)) {
    HostRegistration registered = device_.register_host_memory(arena_, {});
    if (!registered.explanation.empty()) std::fprintf(stderr, "%s\n", registered.explanation.c_str());
  }
  ~DeviceBench() { CHECK(idle_, "copies left over"); }

  void copies() {
    std::unique_ptr<PlainCopies> plain = make_plain_copies(device_.facts().is_host, sizes_.piece_bytes);
    struct Case {
      const char* name;
      Way way;
      double goal;
    };
    for (const Case& c : {Case{"host to device", Way::in, 0.95}, Case{"device to host", Way::out, 0.95},
                          Case{"both ways at once", Way::both, 0.90}}) {
      Figure figure{"device", c.name, "GB/s", plain->name(), c.goal, {}, {}};
      double gigabytes = 1e-9 * static_cast<double>(sizes_.piece_bytes * sizes_.pieces * (c.way == Way::both ? 2 : 1));
      for (int round = 0; round < sizes_.rounds; ++round) {
        figure.ours.push_back(gigabytes / seconds_of([&] { our_copies(c.way); }));
        figure.theirs.push_back(gigabytes / seconds_of([&] { plain->run(c.way, sizes_.pieces); }));
      }
      print(figure, json_);
    }
  }

  // Bytes an element, read and written, against a copy within the device, which reads and writes as many as it copies.
  void kernels() {
    std::byte* base = device_.memory().data();
    const uint64_t n = sizes_.elements;
    const double goal = device_.facts().is_host ? 0 : 0.85;
    auto at = [&](uint64_t bytes_per_element) { return base + bytes_per_element * n; };
    run_kernel("cast fp32 to bf16", kernel::Cast{base, at(4), Dtype::fp32, Dtype::bf16, n}, 6, goal);
    run_kernel("cast bf16 to fp32", kernel::Cast{base, at(4), Dtype::bf16, Dtype::fp32, n}, 6, goal);
    run_kernel("accumulate bf16", kernel::Accumulate{base, Dtype::bf16, reinterpret_cast<float*>(at(4)), n}, 10, goal);
    run_kernel("square sums bf16", kernel::SquareSums{base, Dtype::bf16, n, reinterpret_cast<double*>(at(4))}, 2, goal);
    run_kernel("square sums fp32", kernel::SquareSums{base, Dtype::fp32, n, reinterpret_cast<double*>(at(4))}, 4, goal);
    float* scales = reinterpret_cast<float*>(at(6));
    run_kernel("quantise nf4", kernel::Quantise{kernel::BlockCode::nf4, base, Dtype::bf16, at(4), scales, n, 64},
               2.5625, goal);
    run_kernel("dequantise nf4", kernel::Dequantise{kernel::BlockCode::nf4, at(4), scales, base, Dtype::bf16, n, 64},
               2.5625, goal);
    run_kernel("adamw split fp32", update(MomentForm::fp32), 26, goal);
    run_kernel("adamw split bf16", update(MomentForm::bf16), 18, goal);
    run_kernel("adamw split int8", update(MomentForm::int8), 14.03125, goal);
  }

 private:
  void our_copies(Way way) {
    // Four places of each side: two under way in each direction.
    uint64_t pieces = (way == Way::both ? 2 : 1) * sizes_.pieces, issued = 0, ended = 0;
    idle_ = false;
    std::function<void(bool, uint64_t)> issue = [&](bool in, uint64_t slot) {
      ++issued;
      std::span<std::byte> host = arena_.subspan(slot * sizes_.piece_bytes, sizes_.piece_bytes);
      std::span<std::byte> place = device_.memory().subspan(slot * sizes_.piece_bytes, sizes_.piece_bytes);
      Lease from = in ? Lease::over(Tier::host, host) : Lease::over(Tier::device, place);
      Lease to = in ? Lease::over(Tier::device, place) : Lease::over(Tier::host, host);
      device_.copy(std::move(from), std::move(to)).transfer.then([&, in, slot](Result<Lease> result) {
        CHECK(result.ok(), result.status().message());
        ++ended;
        if (issued < pieces) issue(in, slot);
      });
    };
    for (uint64_t slot = 0; slot < 4; ++slot) issue(way == Way::both ? slot < 2 : way == Way::in, slot);
    while (ended < issued) device_.wait(std::chrono::seconds(1));
    idle_ = true;
  }

  kernel::UpdateTile update(MomentForm moments) {
    kernel::UpdateTile tile;
    tile.form.moments = moments;
    tile.numbers = {make_coefficients(OptimizerKind::adamw, {.weight_decay = 0.01}, 10), 1.0f, 1, 10};
    uint64_t offset = 0;
    auto take = [&](uint64_t bytes) {
      std::byte* place = device_.memory().data() + offset;
      offset += round_up(bytes, kAlignmentBytes);
      return place;
    };
    tile.weight = take(2 * sizes_.elements);
    tile.gradient = take(2 * sizes_.elements);
    size_t plane = 0;
    for (const Plane& p : resting_planes(tile.form)) tile.planes[plane++] = take(p.bytes(sizes_.elements));
    tile.elements = sizes_.elements;
    return tile;
  }

  void wait_for_kernels() {
    Event done = must(device_.record(device_.kernel_stream()));
    while (!must(device_.reached(done))) {
    }
  }

  double kernel_seconds(const Kernel& kernel) {
    return seconds_of([&] {
      CHECK(device_.launch(kernel, device_.kernel_stream()).ok());
      wait_for_kernels();
    });
  }

  void run_kernel(const char* name, const Kernel& kernel, double bytes_per_element, double goal) {
    // 0.0115, as fp32 and as bf16: no denormals, no NaN, and no zeros, for which some kernels have less to do and some
    // more. What a round leaves is not what the next begins with.
    auto fill = [&] {
      const kernel::Fill ordinary{device_.memory().data(), device_.memory().size(), 0x3c};
      CHECK(device_.launch(ordinary, device_.kernel_stream()).ok());
    };
    Figure figure{"device", name, "GB/s", "copy within the device", goal, {}, {}};
    fill();
    kernel_seconds(kernel);  // the first loads its code
    for (int round = 0; round < sizes_.rounds; ++round) {
      fill();
      wait_for_kernels();
      figure.ours.push_back(1e-9 * bytes_per_element * static_cast<double>(sizes_.elements) / kernel_seconds(kernel));
      figure.theirs.push_back(within_gbps());
    }
    print(figure, json_);
  }

  double within_gbps() {
    uint64_t bytes = device_.memory().size() / 2;
    double seconds = seconds_of([&] {
      Lease from = Lease::over(Tier::device, device_.memory().first(bytes));
      Lease to = Lease::over(Tier::device, device_.memory().subspan(bytes, bytes));
      CHECK(std::move(device_.copy(std::move(from), std::move(to)).transfer).wait().ok());
    });
    return 2e-9 * static_cast<double>(bytes) / seconds;
  }

  Device& device_;
  const Sizes sizes_;
  const bool json_;
  std::span<std::byte> arena_;
  bool idle_ = true;
};

int run(bool quick, bool json) {
  Sizes sizes;
  bool is_host = !gpu::usable(gpu::find_cuda(), 0).ok();
  if (is_host) sizes = {.piece_bytes = 16 * kMiB, .pieces = 64, .elements = 2 * kMiB, .rounds = 5};
  if (quick) sizes = {.piece_bytes = 4 * kMiB, .pieces = 8, .elements = kMiB / 2, .rounds = 5};
  uint64_t arena_bytes = std::max(14 * sizes.elements + kMiB, 4 * sizes.piece_bytes);
  gpu::DeviceOptions options;
  options.cuda.arena_bytes = options.host.arena_bytes = arena_bytes;
  gpu::OpenedDevice opened = must(gpu::open_device(options));
  std::fprintf(stderr, "%s\n", opened.explanation.c_str());
  if (is_host) std::fprintf(stderr, "SKIPPED: no GPU; the figures below are those of the host device\n");
  DeviceBench bench(*opened.device, sizes, json);
  bench.copies();
  bench.kernels();
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  penstock::bench::Flags flags("device", "Does a Device copy and compute as fast as the simplest loop?");
  flags.parse(argc, argv);
  return penstock::bench::run(flags.quick(), flags.json());
}
