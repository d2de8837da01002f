#include "tools/plan/shape_solver.h"

#include <algorithm>

#include "tests/fuzz/target.h"
#include "tests/fuzz/targets/forecasting.h"
#include "tiering/store/byte_codec.h"
#include "tools/machine/shipped_machines.h"

namespace penstock::fuzz {
namespace {

using namespace tools;

constexpr uint64_t kParametersMost = uint64_t{1} << 53;  // that parse_count() reads
constexpr uint64_t kPlannedParametersMost = 4'000'000, kPlannedLayersMost = 8;

struct Flags {
  ShapeWish wish;
  uint64_t tokens = 0, sequence = 0, micro_batches = 0;
  double flops = 0, host_gbps = 0;
  uint64_t device_bytes = 0, host_bytes = 0, nvme_bytes = 0;
};

Bytes input_of(const Flags& flags) {
  ByteWriter out;
  const ShapeWish& wish = flags.wish;
  for (uint64_t number :
       {wish.parameters, wish.layers, wish.hidden, wish.heads, wish.kv_heads, wish.ffn, wish.vocab, flags.tokens,
        flags.sequence, flags.micro_batches, flags.device_bytes, flags.host_bytes, flags.nvme_bytes}) {
    out.put(number);
  }
  out.put(flags.flops);
  out.put(flags.host_gbps);
  return out.take();
}

Flags flags_of(std::span<const std::byte> input) {
  ByteReader in(input);
  auto number = [&] { return in.get<uint64_t>() % (kParametersMost + 1); };
  Flags flags;
  ShapeWish& wish = flags.wish;
  for (uint64_t* into : {&wish.parameters, &wish.layers, &wish.hidden, &wish.heads, &wish.kv_heads, &wish.ffn,
                         &wish.vocab, &flags.tokens, &flags.sequence, &flags.micro_batches, &flags.device_bytes,
                         &flags.host_bytes, &flags.nvme_bytes}) {
    *into = number();
  }
  flags.micro_batches %= 1'000'001;  // the flag's limit
  flags.flops = in.get<double>();
  flags.host_gbps = in.get<double>();
  // As parse_rate() reads them.
  for (double* rate : {&flags.flops, &flags.host_gbps}) {
    if (!(*rate >= 1e-6 && *rate <= 1e24)) *rate = 0;
  }
  return flags;
}

std::vector<Bytes> seeds() {
  Flags small{.wish = {.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2, .ffn = 128, .vocab = 300},
              .tokens = 4096,
              .sequence = 128};
  Flags derived{.wish = {.parameters = 3'000'000, .layers = 2, .vocab = 1000},
                .tokens = 4096,
                .sequence = 128,
                .micro_batches = 4};
  derived.flops = 1e12;
  derived.host_gbps = 20;
  Flags large{.wish = {.parameters = 7'000'000'000, .layers = 32}, .tokens = 65536, .sequence = 2048};
  small.host_bytes = kGiB;
  Flags many = small;
  many.tokens = uint64_t{1} << 36;
  many.sequence = 1;
  return {input_of(small), input_of(derived), input_of(large), input_of(many)};
}

std::string run(std::span<const std::byte> input) {
  const Flags flags = flags_of(input);
  const Result<ModelShape> shape = solve_shape(flags.wish);
  if (!shape.ok()) return shape.status().remedy().empty() ? "refused without a way out" : "";
  const double parameters = static_cast<double>(shape->parameters());
  if (flags.wish.parameters > 0 && std::abs(parameters / static_cast<double>(flags.wish.parameters) - 1) > 0.0101) {
    return "not the parameters that were asked for";
  }
  const double least =
      static_cast<double>(shape->layers) * 3 * static_cast<double>(shape->hidden) * static_cast<double>(shape->ffn);
  if (parameters * 1.0001 < least) return "lost parameters";
  if (shape->parameters() > kPlannedParametersMost || shape->layers > kPlannedLayersMost) return "";
  ForecastRequest request = request_of(*shape, shipped_profiles().front());
  if (flags.flops > 0) request.machine.device_flops = flags.flops;
  if (flags.host_gbps > 0) request.machine.host_gbps = flags.host_gbps;
  request.budgets = {flags.device_bytes, flags.host_bytes, flags.nvme_bytes};
  request.tokens = flags.tokens;
  request.sequence = flags.sequence;
  request.micro_batches = static_cast<uint32_t>(flags.micro_batches);
  // What is right may take long to plan; what is too much is to be refused at once.
  const uint64_t micro_batches =
      request.micro_batches > 0 ? request.micro_batches : request.tokens / std::max<uint64_t>(request.sequence, 8192);
  if (micro_batches > 64 && micro_batches * shape->layers < (1 << 22)) return "";
  return predict(request);
}

}  // namespace

const Target shape_solver{
    .name = "shape_solver", .seeds = seeds, .run = run, .rounds = 4000, .memory_bytes = 64 * kMiB};

}  // namespace penstock::fuzz
