// How close does one pass of the optimizer come to the speed of memory?
//
// On paper: a core here reads about 17 GB/s of cache lines and writes them back at the same time, 32 GB/s counted both
// ways. AdamW over fp32 planes, with a bf16 gradient in and a bf16 weight out, moves 28 B a parameter (12 read and
// written, 2 + 2): 0.87 ns. Its two divisions and one square root for 16 elements take 33 cycles, 0.59 ns a parameter,
// so they hide. A split master moves 26 B. bf16 moments move 18 B and byte moments 14 B: 0.56 and 0.43 ns, close to or
// below their arithmetic.
//
// Each case runs next to its limit: the fastest of several read-modify-write loops over the same streams
// (memory_limit.h). `rel` lines compare cases with one another; `checksums` lines show the cost of checksums inside the
// pass.
//
//   build/bench/adam [--threads N] [--elements-millions N] [--only CASE] [--quick] [--json]
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "bench/figure.h"
#include "bench/memory_limit.h"
#include "bench/support/flags.h"
#include "cpu_optim/checksum.h"
#include "cpu_optim/gradient.h"
#include "cpu_optim/update_workers.h"

namespace penstock::bench {
namespace {

using cpu_optim::TileUpdater;

struct Options {
  uint32_t threads = 1;
  uint64_t elements = 128 * 1024 * 1024;
  int repeats = 5;
  bool json = false;
  std::string only;
};

struct Case {
  std::string name;
  StateForm form;
  cpu_optim::Isa isa = cpu_optim::best_isa();
  bool checks = false;  // checksums of what is read and written, and the norm
  double goal = 0;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        workers_({.threads = options.threads, .cpus = {}}),
        weight_(huge_memory(options.elements * 4)),
        master_(huge_memory(options.elements * 4)),
        momentum_(huge_memory(options.elements * 4)),
        variance_(huge_memory(options.elements * 4)),
        gradient_(huge_memory(options.elements * 4)) {}

  void run(const Case& c) {
    if (!options_.only.empty() && c.name.find(options_.only) == std::string::npos) return;
    prepare(c);
    const MoveShape shape = best_shape();
    Figure figure{"adam", c.name, "1/ns/param", "limit", c.goal, {}, {}};
    for (int i = 0; i < options_.repeats; ++i) {
      figure.theirs.push_back(rate([&] { move_all(shape); }));
      figure.ours.push_back(rate([&] { update_all(c); }));
    }
    if (!options_.json) {
      const double ns = 1 / median(figure.ours), gbps = mix_.bytes_per_element() / ns;
      std::printf(
          "%-26s %u thread%s  %.3f ns/param  %6.1f GB/s   limit %.3f ns/param  %6.1f GB/s   share %.3f [%.3f-%.3f]%s\n",
          c.name.c_str(), options_.threads, options_.threads == 1 ? " " : "s", ns, gbps, 1 / median(figure.theirs),
          mix_.bytes_per_element() * median(figure.theirs), median(ratios(figure)), least(figure), most(figure),
          c.goal != 0 ? (", goal " + std::to_string(c.goal).substr(0, 4)).c_str() : "");
      std::fflush(stdout);
    } else {
      print(figure, true);
    }
  }

  // Ours is `c`, theirs `base`: how many times faster, or with checks, what they cost.
  void compare(const std::string& name, const Case& c, const Case& base, double goal) {
    if (!options_.only.empty() && name.find(options_.only) == std::string::npos) return;
    Figure figure{"adam", name, "1/ns/param", base.name, goal, {}, {}};
    for (int i = 0; i < options_.repeats; ++i) {
      prepare(base);
      figure.theirs.push_back(rate([&] { update_all(base); }));
      prepare(c);
      figure.ours.push_back(rate([&] { update_all(c); }));
    }
    print(figure, options_.json);
  }

 private:
  static double least(const Figure& f) {
    auto r = ratios(f);
    return *std::min_element(r.begin(), r.end());
  }
  static double most(const Figure& f) {
    auto r = ratios(f);
    return *std::max_element(r.begin(), r.end());
  }

  double rate(const std::function<void()>& work) const {
    return static_cast<double>(options_.elements) / (seconds_of(work) * 1e9);
  }

  // Sane numbers: denormals and NaNs would measure something else.
  void prepare(const Case& c) {
    if (form_ && *form_ == c.form) return;
    form_ = c.form;
    const uint64_t n = options_.elements;
    std::memset(momentum_, 0, n * 4);
    std::memset(variance_, 0, n * 4);
    std::memset(master_, 0, n * 4);
    workers_.for_pieces(n, kBlockElements, [&](uint64_t begin, uint64_t end) {
      for (uint64_t i = begin; i < end; ++i) {
        const float noise = static_cast<float>(static_cast<int>((i * 2654435761u) >> 16 & 1023) - 512);
        const float g = 1e-5f * noise, p = 1e-4f * noise;
        if (c.form.gradient == Dtype::fp32) {
          std::memcpy(gradient_ + i * 4, &g, 4);
        } else {
          std::memcpy(gradient_ + i * 2, reinterpret_cast<const std::byte*>(&g) + 2, 2);
        }
        if (c.form.master == MasterForm::same) std::memcpy(weight_ + i * 4, &p, 4);
        if (c.form.master == MasterForm::full) std::memcpy(master_ + i * 4, &p, 4);
        if (c.form.master == MasterForm::split)
          std::memcpy(weight_ + i * 2, reinterpret_cast<const std::byte*>(&p) + 2, 2);
      }
    });
    updater_.emplace(c.form, c.isa);
    tile_ = cpu_optim::TileView();
    tile_.elements = n;
    tile_.weight = cpu_optim::PlaneView::in_place(weight_);
    tile_.gradient = gradient_;
    mix_ = ByteMix();
    size_t at = 0;
    for (const Plane& plane : resting_planes(c.form)) {
      std::byte* memory = memory_of(plane.role);
      tile_.planes[at++] = cpu_optim::PlaneView::in_place(memory);
      // Scales are 4 B in 256 elements: they go with their moments.
      if (plane.role != Role::momentum_scale && plane.role != Role::variance_scale) {
        mix_.changed.push_back({memory, bytes_of(plane.dtype)});
      }
    }
    mix_.read.push_back({gradient_, bytes_of(c.form.gradient)});
    (c.form.master == MasterForm::full ? mix_.written : mix_.changed).push_back({weight_, bytes_of(c.form.weight)});
  }

  std::byte* memory_of(Role role) const {
    const uint64_t half = options_.elements * 2;
    switch (role) {
      case Role::momentum:
        return momentum_;
      case Role::variance:
        return variance_;
      case Role::momentum_scale:
        return momentum_ + half;
      case Role::variance_scale:
        return variance_ + half;
      default:
        return master_;
    }
  }

  MoveShape best_shape() {
    MoveShape best = kMoveShapes[0];
    double most = 0;
    for (const MoveShape shape : kMoveShapes) {
      const double here = std::max(rate([&] { move_all(shape); }), rate([&] { move_all(shape); }));
      if (here > most) most = here, best = shape;
    }
    // The loops have counted through the planes' bytes.
    StateForm form = *form_;
    form_.reset();
    prepare({.name = "", .form = form, .isa = updater_->isa()});
    return best;
  }

  void move_all(MoveShape shape) {
    workers_.for_pieces(options_.elements, kBlockElements,
                        [&](uint64_t begin, uint64_t end) { move(mix_, shape, begin, end); });
  }

  void update_all(const Case& c) {
    const Hyper hyper{.lr = 1e-3, .weight_decay = 0.01, .momentum = c.form.optimizer == OptimizerKind::sgd ? 0.9 : 0};
    const NumbersRun whole{{make_coefficients(c.form.optimizer, hyper, ++step_), 0.999f, /*seed=*/1, step_}};
    cpu_optim::TileJob job{&*updater_, tile_, {&whole, 1}, {}};
    if (c.checks) {
      const uint64_t count = updater_->checksum_count(tile_.elements);
      source_checksums_.resize(count);
      target_checksums_.resize(count);
      square_sums_.resize(ceil_div(tile_.elements, kBlockElements));
      job.notes.square_sums = square_sums_;
      job.notes.source_checksums = source_checksums_;
      job.notes.target_checksums = target_checksums_;
    }
    workers_.run(job);
  }

  const Options options_;
  cpu_optim::UpdateWorkers workers_;
  std::byte *const weight_, *const master_, *const momentum_, *const variance_, *const gradient_;
  std::optional<StateForm> form_;
  std::optional<TileUpdater> updater_;
  cpu_optim::TileView tile_;
  ByteMix mix_;
  uint64_t step_ = 0;
  std::vector<uint64_t> source_checksums_, target_checksums_;
  std::vector<double> square_sums_;
};

std::vector<Case> cases() {
  const StateForm full{.master = MasterForm::full};
  const StateForm same{.master = MasterForm::same, .weight = Dtype::fp32, .gradient = Dtype::fp32};
  const StateForm split;
  std::vector<Case> all = {{.name = "adamw full", .form = full, .goal = 0.95},
                           {.name = "adamw same", .form = same, .goal = 0.95},
                           {.name = "adamw split", .form = split, .goal = 0.95},
                           {.name = "adamw split bf16-moments", .form = split, .goal = 0},
                           {.name = "adamw split int8-moments", .form = split, .goal = 0},
                           {.name = "adamw full fp16", .form = full, .goal = 0.95}};
  all[3].form.moments = MomentForm::bf16;
  all[4].form.moments = MomentForm::int8;
  all[5].form.weight = all[5].form.gradient = Dtype::fp16;
  for (OptimizerKind kind : kOptimizerKinds) {
    if (kind == split.optimizer) continue;
    StateForm form = split;
    form.optimizer = kind;
    all.push_back({.name = std::string(name_of(kind)) + " split", .form = form});
  }
  for (cpu_optim::Isa isa : cpu_optim::available_isas()) {
    if (isa == cpu_optim::Isa::avx2 && isa != cpu_optim::best_isa()) {
      all.push_back({.name = "adamw full on avx2", .form = full, .isa = isa});
    }
  }
  return all;
}

int run(int argc, char** argv) {
  Flags flags("adam", "How close does one pass of the optimizer come to the speed of memory?");
  Options options;
  uint64_t threads = 1, millions = 128;
  flags.options().count("--threads", threads, "Update threads");
  flags.options().count("--elements-millions", millions, "Millions of elements; 144 or more make 2 GiB of planes");
  flags.options().text("--only", options.only, "NAME", "Only cases whose name contains this");
  flags.parse(argc, argv);
  options.threads = static_cast<uint32_t>(threads);
  options.json = flags.json();
  options.elements = flags.quick() ? 4 * 1024 * 1024 : millions * 1024 * 1024;
  options.repeats = flags.quick() ? 2 : 5;

  Bench bench(options);
  for (const Case& c : cases()) bench.run(c);
  const Case full{.name = "adamw full", .form = {.master = MasterForm::full}}, split{.name = "adamw split", .form = {}};
  Case bf16 = split, int8 = split, checked = split;
  bf16.form.moments = MomentForm::bf16;
  int8.form.moments = MomentForm::int8;
  checked.checks = true;
  bench.compare("rel split to full", split, full, 1.0);
  bench.compare("rel bf16-moments to fp32", bf16, split, 1.35);
  bench.compare("rel int8-moments to fp32", int8, split, 1.5);
  bench.compare("rel checksums and norm to none", checked, split, 0);
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) { return penstock::bench::run(argc, argv); }
