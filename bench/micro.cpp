// How long do the parts take that a step calls thousands or millions of times?
//
// On paper: a block of 64 Ki elements fits the second-level cache, so a kernel shows its arithmetic here and not the
// memory: AdamW's two divisions and one square root take 0.59 ns a parameter with AVX-512 (bench/adam has the same pass
// over memory). The checksum takes six vector operations for each stripe of 64 B: 40 GB/s and more. PlanRun must cost
// little next to a tile's transfer of milliseconds: below 1 us a move. It allocates when a step begins, not a hundred
// times, and not with a move.
//
//   build/bench/micro [--benchmark_filter=REGEX] [--benchmark_format=json] [--quick] [--json]
//
// --quick and --json work as in every benchmark here; all other flags are Google Benchmark's.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <vector>

#include "cpu_optim/block_codes.h"
#include "cpu_optim/checksum.h"
#include "cpu_optim/gradient.h"
#include "cpu_optim/tile_update.h"
#include "tiering/buffer.h"
#include "tiering/plan/plan_run.h"
#include "tiering/plan/planner.h"
#include "tiering/store/root_record.h"
#include "tiering/store/store_shape.h"
#include "tiering/store/table_page.h"

namespace {

// Of this thread, which is the only one that allocates while something is measured.
thread_local uint64_t allocations = 0;

}  // namespace

// Where they were inlined, gcc would take free() for one that does not belong to new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace penstock::bench {
namespace {

using benchmark::State;

constexpr uint64_t kElements = kBlockElements;

// Printed as seconds with a prefix, "718ps".
benchmark::Counter time_for_each(double count) {
  return {count, benchmark::Counter::kIsRate | benchmark::Counter::kInvert};
}

void count_elements(State& state, uint64_t bytes_per_element) {
  state.counters["per_element"] = time_for_each(static_cast<double>(state.iterations()) * kElements);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kElements * bytes_per_element));
}

// Sane numbers: denormals and NaNs would measure something else.
void fill(std::span<std::byte> plane, Dtype dtype) {
  for (uint64_t i = 0; i < kElements; ++i) {
    const float value = 1e-3f * static_cast<float>(static_cast<int>((i * 2654435761u) >> 16 & 1023) - 512);
    if (dtype == Dtype::fp32) {
      std::memcpy(plane.data() + i * 4, &value, 4);
    } else if (dtype == Dtype::bf16) {
      std::memcpy(plane.data() + i * 2, reinterpret_cast<const std::byte*>(&value) + 2, 2);
    } else {
      const uint16_t half = 0x3c00;  // 1.0
      std::memcpy(plane.data() + i * 2, &half, 2);
    }
  }
}

void update(State& state, const StateForm& form) {
  const cpu_optim::TileUpdater updater(form);
  const TileLayout layout(form, kElements);
  Buffer slot = Buffer::on_heap(round_up(kElements * 16, kAlignmentBytes));
  Buffer weight = Buffer::on_heap(kElements * 4), gradient = Buffer::on_heap(kElements * 4);
  std::memset(slot.data(), 0, slot.size_bytes());
  fill(weight.bytes(), form.weight);
  fill(gradient.bytes(), form.gradient);
  const cpu_optim::TileView tile =
      cpu_optim::TileView::in_place(layout, slot.data(), weight.data(), gradient.data(), kElements, 0);
  const Hyper hyper{.lr = 1e-4, .weight_decay = 0.01, .momentum = form.optimizer == OptimizerKind::sgd ? 0.9 : 0};
  StepNumbers numbers{make_coefficients(form.optimizer, hyper, 1), 0.999f, /*seed=*/1, 1};
  for (auto _ : state) {
    ++numbers.step;
    benchmark::DoNotOptimize(updater.update(tile, numbers).ok());
  }
  uint64_t bytes = bytes_of(form.gradient) + bytes_of(form.weight) * (form.master == MasterForm::full ? 1 : 2);
  for (const Plane& plane : resting_planes(form)) {
    if (plane.role != Role::momentum_scale && plane.role != Role::variance_scale) bytes += 2 * bytes_of(plane.dtype);
  }
  count_elements(state, bytes);
}

const char* name_of(MasterForm form) {
  return form == MasterForm::split ? "split" : form == MasterForm::full ? "full" : "same";
}
const char* name_of(MomentForm form) {
  return form == MomentForm::fp32 ? "fp32" : form == MomentForm::bf16 ? "bf16" : "int8";
}

void register_updates() {
  for (OptimizerKind kind : kOptimizerKinds) {
    for (auto master : {MasterForm::split, MasterForm::full, MasterForm::same}) {
      for (auto moments : {MomentForm::fp32, MomentForm::bf16, MomentForm::int8}) {
        StateForm form{kind, master, moments, Dtype::bf16, Dtype::bf16};
        if (master == MasterForm::same) form.weight = Dtype::fp32;
        if (!validate(form).ok()) continue;
        const std::string name = text("update/", penstock::name_of(kind), "/", name_of(master), "/", name_of(moments));
        benchmark::RegisterBenchmark(name.c_str(), [form](State& state) { update(state, form); });
      }
    }
  }
}

void register_gradients() {
  static constexpr Dtype kDtypes[] = {Dtype::fp32, Dtype::bf16, Dtype::fp16};
  for (Dtype from : kDtypes) {
    const std::string dtype = penstock::name_of(from);
    benchmark::RegisterBenchmark(("gradient/accumulate/" + dtype).c_str(), [from](State& state) {
      const cpu_optim::GradientKernels kernels;
      Buffer source = Buffer::on_heap(kElements * 4), sum = Buffer::on_heap(kElements * 4);
      fill(source.bytes(), from);
      std::memset(sum.data(), 0, sum.size_bytes());
      for (auto _ : state) {
        kernels.accumulate(from, source.data(), reinterpret_cast<float*>(sum.data()), kElements);
        benchmark::ClobberMemory();
      }
      count_elements(state, bytes_of(from) + 8);
    });
    benchmark::RegisterBenchmark(("gradient/square_sums/" + dtype).c_str(), [from](State& state) {
      const cpu_optim::GradientKernels kernels;
      Buffer source = Buffer::on_heap(kElements * 4);
      fill(source.bytes(), from);
      double sum = 0;
      for (auto _ : state) {
        kernels.square_sums(from, source.data(), kElements, {&sum, 1});
        benchmark::DoNotOptimize(sum);
      }
      count_elements(state, bytes_of(from));
    });
    for (Dtype to : kDtypes) {
      const std::string name = "gradient/cast/" + dtype + "/" + penstock::name_of(to);
      benchmark::RegisterBenchmark(name.c_str(), [from, to](State& state) {
        const cpu_optim::GradientKernels kernels;
        Buffer source = Buffer::on_heap(kElements * 4), target = Buffer::on_heap(kElements * 4);
        fill(source.bytes(), from);
        for (auto _ : state) {
          kernels.cast(from, source.data(), to, target.data(), kElements);
          benchmark::ClobberMemory();
        }
        count_elements(state, bytes_of(from) + bytes_of(to));
      });
    }
  }
}

// Frozen weights of a large unit: more than the caches hold.
void register_block_codes() {
  constexpr uint64_t kUnit = 256 * kElements;
  for (const BlockCode code : {BlockCode::int8, BlockCode::nf4}) {
    for (const cpu_optim::Isa isa : cpu_optim::available_isas()) {
      const std::string name = text("dequantise/", penstock::name_of(code), "/bf16/", cpu_optim::name_of(isa));
      benchmark::RegisterBenchmark(name.c_str(), [code, isa](State& state) {
        Buffer codes = Buffer::on_heap(kUnit), values = Buffer::on_heap(kUnit * 2);
        for (uint64_t i = 0; i < kUnit; ++i) codes.data()[i] = static_cast<std::byte>(i * 2654435761u >> 16);
        const std::vector<float> scales(kUnit / kCodeBlockElements, 0.02f);
        for (auto _ : state) {
          cpu_optim::dequantise({code, codes.data(), scales.data()}, 0, kUnit, Dtype::bf16, values.data(), isa);
          benchmark::ClobberMemory();
        }
        state.counters["per_element"] = time_for_each(static_cast<double>(state.iterations()) * kUnit);
        state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kUnit * 2));
      });
    }
  }
}

void time_checksum(State& state, ChecksumFunction checksum_of) {
  Buffer block = Buffer::on_heap(kElements * 4);
  fill(block.bytes(), Dtype::fp32);
  for (auto _ : state) benchmark::DoNotOptimize(checksum_of(block.bytes(), 1));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * block.size_bytes()));
}

void register_checksums() {
  benchmark::RegisterBenchmark("checksum/definition", [](State& state) { time_checksum(state, checksum); });
  for (cpu_optim::Isa isa : cpu_optim::available_isas()) {
    const std::string name = text("checksum/", cpu_optim::name_of(isa));
    benchmark::RegisterBenchmark(name.c_str(),
                                 [isa](State& state) { time_checksum(state, cpu_optim::checksum_function(isa)); });
  }
}

// A model of 2.7 billion parameters with all of its state on one drive.
PlanRequest usual_request(StepScope scope) {
  PlanRequest request;
  for (int i = 0; i < 32; ++i) {
    Unit unit;
    unit.name = text("h.", i);
    unit.elements = 84'000'000 / kBlockElements * kBlockElements;
    request.workload.units.push_back(unit);
  }
  request.workload.uses = uses_in_turn(request.workload.units);
  for (Use& use : request.workload.uses) {
    use.forward_s = 10e-3;
    use.backward_s = 20e-3;
    use.activation_bytes = 8 * kMiB;
    use.boundary_bytes = kMiB;
  }
  request.workload.scope = scope;
  request.workload.clipping.norm = 1;
  DriveRates drive;
  drive.burst = MixCurve({{0.0, 4.0}, {0.5, 3.8}, {1.0, 3.5}});
  request.machine.drives = {drive};
  request.machine.host_gbps = 60;
  request.machine.devices = 1;
  request.machine.host_to_device_gbps = request.machine.device_to_host_gbps = 25;
  request.machine.collective_gbps = 100;
  request.budgets = {.device_bytes = 8 * kGiB, .host_bytes = 16 * kGiB};
  request.choices.host_state_share = 0;
  return request;
}

// Takes steps of a plan without doing anything in them: moves end in the order in which they were issued.
class StepRunner {
 public:
  explicit StepRunner(const Plan& plan) : run_(plan) { in_flight_.reserve(plan.moves.size()); }

  void take_step() {
    const uint64_t step = steps_++;
    run_.begin(step, {});
    in_flight_.clear();
    size_t ended = 0;
    bool has_verdict = false;
    do {
      while (std::optional<TileId> tile = run_.next_gradient(step)) {
        if (!run_.try_take_gradient(step, *tile)) break;
        run_.gradient_complete(step, *tile);
      }
      if (!has_verdict && run_.gradients_complete(step)) {
        run_.give_verdict(step, Verdict::confirm);
        has_verdict = true;
      }
      for (size_t lane = 0; lane < kLanes; ++lane) {
        while (auto ticket = run_.next(static_cast<Lane>(lane))) in_flight_.push_back(*ticket);
      }
      if (ended == in_flight_.size()) continue;
      run_.ended(in_flight_[ended++]);
    } while (!run_.idle());
    moves_ += ended;
  }
  uint64_t moves() const { return moves_; }

 private:
  PlanRun run_;
  std::vector<PlanRun::Ticket> in_flight_;
  uint64_t steps_ = 0, moves_ = 0;
};

void register_plan_runs() {
  for (const auto& [name, scope] : {std::pair{"plan_run/update_only", StepScope::update_only},
                                    std::pair{"plan_run/training", StepScope::training}}) {
    benchmark::RegisterBenchmark(name, [scope = scope](State& state) {
      Result<Plan> plan = make_plan(usual_request(scope));
      if (!plan.ok()) return state.SkipWithError(plan.status().message().c_str());
      StepRunner runner(*plan);
      const uint64_t before = allocations;
      for (auto _ : state) runner.take_step();
      const auto moves = static_cast<double>(runner.moves());
      state.counters["per_move"] = time_for_each(moves);
      state.counters["allocations_per_move"] = static_cast<double>(allocations - before) / moves;
      state.counters["moves"] = benchmark::Counter(moves, benchmark::Counter::kAvgIterations);
    });
  }
}

StoreShape usual_shape() {
  const PlanRequest request = usual_request(StepScope::update_only);
  return StoreShape::of(request.workload, TileMap(request.workload, 16 * kBlockElements));
}

RootRecord usual_root() {
  RootRecord root;
  root.sequence = 7;
  root.page_slots.assign(64, 1);
  root.step = 7;
  root.config_hash.assign(64, 'c');
  return root;
}

void register_codecs() {
  benchmark::RegisterBenchmark("codec/root/encode", [](State& state) {
    const RootRecord root = usual_root();
    for (auto _ : state) benchmark::DoNotOptimize(root.encode().data());
  });
  benchmark::RegisterBenchmark("codec/root/decode", [](State& state) {
    const std::vector<std::byte> bytes = usual_root().encode();
    for (auto _ : state) {
      if (!RootRecord::decode(bytes, "root").ok()) return state.SkipWithError("the record is refused");
    }
  });
  benchmark::RegisterBenchmark("codec/table_page/encode", [](State& state) {
    const TableGeometry geometry(usual_shape());
    TablePage page;
    page.words.assign(geometry.words_per_page(), 5);
    for (auto _ : state) benchmark::DoNotOptimize(page.encode(geometry.page_bytes()).data());
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * geometry.page_bytes()));
  });
  benchmark::RegisterBenchmark("codec/table_page/decode", [](State& state) {
    const TableGeometry geometry(usual_shape());
    TablePage page;
    page.words.assign(geometry.words_per_page(), 5);
    const std::vector<std::byte> bytes = page.encode(geometry.page_bytes());
    for (auto _ : state) {
      if (!TablePage::decode(bytes, "page").ok()) return state.SkipWithError("the page is refused");
    }
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * geometry.page_bytes()));
  });
  benchmark::RegisterBenchmark("codec/shape/encode", [](State& state) {
    const StoreShape shape = usual_shape();
    for (auto _ : state) benchmark::DoNotOptimize(shape.encode().data());
  });
  benchmark::RegisterBenchmark("codec/shape/decode", [](State& state) {
    const std::vector<std::byte> bytes = usual_shape().encode();
    for (auto _ : state) {
      if (!StoreShape::decode(bytes).ok()) return state.SkipWithError("the shape is refused");
    }
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes.size()));
  });
}

int run(int argc, char** argv) {
  static char short_run[] = "--benchmark_min_time=0.001", json[] = "--benchmark_format=json";
  std::vector<char*> arguments(argv, argv + argc);
  for (char*& argument : arguments) {
    if (argument == std::string_view("--quick")) argument = short_run;
    if (argument == std::string_view("--json")) argument = json;
  }
  int count = argc;
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return static_cast<int>(Code::kUsage);
  register_updates();
  register_gradients();
  register_checksums();
  register_block_codes();
  register_codecs();
  register_plan_runs();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) { return penstock::bench::run(argc, argv); }
