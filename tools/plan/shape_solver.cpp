#include "tools/plan/shape_solver.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "tiering/tier.h"
#include "tools/penstock/quantity.h"

namespace penstock::tools {
namespace {

constexpr uint64_t kWidthStep = 16;
constexpr uint64_t kVocabUsual = 32000;
constexpr uint64_t kTiedBelow = 2'000'000'000;  // small models share embedding and head
constexpr double kOff = 0.01;
// Of any one dimension, and of those that are multiplied by themselves: no product of them wraps around.
constexpr uint64_t kSizeMost = uint64_t{1} << 24, kWidthMost = uint64_t{1} << 20;

uint64_t usual_head_size(uint64_t hidden) { return hidden >= 2048 ? 128 : 64; }
uint64_t usual_ffn(uint64_t hidden) { return round_up(hidden * 8 / 3, hidden >= 1024 ? 256 : 16); }

// Blocks of 12 h^2 parameters, and width 128 times the depth, as published models have it.
uint64_t usual_layers(double parameters) {
  const double hidden = std::cbrt(parameters * 128 / 12);
  return std::max<uint64_t>(1, static_cast<uint64_t>(std::lround(hidden / 128)));
}

ModelShape shape_of_width(const ShapeWish& wish, uint64_t layers, uint64_t hidden) {
  ModelShape shape;
  shape.layers = layers;
  shape.hidden = hidden;
  shape.heads = wish.heads != 0 ? wish.heads : std::max<uint64_t>(1, hidden / usual_head_size(hidden));
  shape.kv_heads = wish.kv_heads != 0 ? wish.kv_heads : shape.heads;
  shape.head_size = std::max<uint64_t>(1, hidden / shape.heads);
  shape.ffn = wish.ffn != 0 ? wish.ffn : usual_ffn(hidden);
  shape.vocab = wish.vocab != 0 ? wish.vocab : kVocabUsual;
  shape.tied = wish.parameters != 0 && wish.parameters < kTiedBelow;
  return shape;
}

// Widths come in round numbers, an eighth of themselves apart or less; the ffn takes up the rest.
uint64_t width_for(const ShapeWish& wish, uint64_t layers) {
  auto parameters = [&](uint64_t hidden) { return shape_of_width(wish, layers, hidden).parameters(); };
  const uint64_t least = wish.heads != 0 ? wish.heads : kWidthStep;
  uint64_t widest = least;  // that does not have too many parameters
  while (parameters(2 * widest) <= wish.parameters) widest *= 2;
  for (uint64_t bit = widest / 2; bit >= least; bit /= 2) {
    if (parameters(widest + bit) <= wish.parameters) widest += bit;
  }
  const uint64_t step = std::max(least, std::bit_floor(widest / 8 / least) * least);
  const uint64_t narrow = std::max(step, round_down(widest, step)), wide = narrow + step;
  auto off = [&](uint64_t hidden) {
    return std::abs(static_cast<double>(parameters(hidden)) - static_cast<double>(wish.parameters));
  };
  return off(wide) < off(narrow) ? wide : narrow;
}

// The width of the ffn takes up what is still missing.
void settle_ffn(ModelShape& shape, uint64_t parameters) {
  const uint64_t one = shape.layers * 3 * shape.hidden;  // of one more ffn column
  const uint64_t others = shape.parameters() - one * shape.ffn;
  if (others >= parameters) return;
  const uint64_t ffn = (parameters - others + one / 2) / one;
  const uint64_t rounded = round_up(ffn, ffn > 1024 ? 16 : 1);
  shape.ffn = std::max<uint64_t>(1, rounded);
}

uint64_t layers_for_width(const ShapeWish& wish) {
  const ModelShape one = shape_of_width(wish, 1, wish.hidden);
  const uint64_t others = one.parameters() - one.block_parameters();
  if (others >= wish.parameters) return 1;
  return std::max<uint64_t>(1, (wish.parameters - others + one.block_parameters() / 2) / one.block_parameters());
}

Status refuse_nonsense(const ShapeWish& wish) {
  if (wish.empty()) return Status(Code::kUsage, "model shape: no size given", "--params 7e9 --layers 32");
  for (uint64_t size : {wish.layers, wish.hidden, wish.heads, wish.kv_heads, wish.ffn, wish.vocab}) {
    if (size > kSizeMost)
      return Status(Code::kUsage, text("model shape: size ", size, ": at most ", kSizeMost, " expected"),
                    "smaller sizes");
  }
  const std::pair<const char*, uint64_t> widths[] = {
      {"--hidden", wish.hidden}, {"--heads", wish.heads}, {"--kv-heads", wish.kv_heads}};
  for (const auto& [flag, size] : widths) {
    if (size > kWidthMost)
      return Status(Code::kUsage, text("model shape: ", flag, " ", size, ": at most ", kWidthMost, " expected"),
                    text(flag, " ", kWidthMost, " or less"));
  }
  if (wish.layers > ModelShape::kLayersMost || wish.parameters > ModelShape::kParametersMost) {
    return Status(Code::kUsage,
                  text("model shape: ", wish.parameters, " parameters, ", wish.layers, " layers: at most ",
                       ModelShape::kParametersMost, " and ", ModelShape::kLayersMost, " expected"),
                  wish.layers > ModelShape::kLayersMost ? text("--layers ", ModelShape::kLayersMost, " or less")
                                                        : text("--params ", ModelShape::kParametersMost, " or less"));
  }
  if (wish.parameters == 0 && (wish.layers == 0 || wish.hidden == 0)) {
    return Status(Code::kUsage, "model shape: too few sizes given",
                  "--params 7e9, or both --layers 32 and --hidden 4096");
  }
  const bool ragged = wish.heads != 0 && wish.hidden % wish.heads != 0;
  if (ragged || (wish.heads != 0 && wish.kv_heads != 0 && wish.heads % wish.kv_heads != 0)) {
    return Status(Code::kUsage,
                  text("model shape: ", wish.hidden, " wide, ", wish.heads, " heads",
                       wish.kv_heads > 0 ? text(", ", wish.kv_heads, " for keys and values") : std::string(),
                       ": do not divide evenly"),
                  "--hidden a multiple of --heads, and --heads of --kv-heads");
  }
  return Status();
}

}  // namespace

Result<ModelShape> solve_shape(const ShapeWish& wish) {
  PENSTOCK_TRY(refuse_nonsense(wish));
  uint64_t layers = wish.layers;
  if (layers == 0) {
    layers = wish.hidden != 0 ? layers_for_width(wish) : usual_layers(static_cast<double>(wish.parameters));
  }
  const uint64_t hidden = wish.hidden != 0 ? wish.hidden : width_for(wish, layers);
  ModelShape shape = shape_of_width(wish, layers, hidden);
  if (wish.parameters != 0 && wish.ffn == 0) settle_ffn(shape, wish.parameters);
  PENSTOCK_TRY(shape.validate());
  shape.name = text(short_count_text(static_cast<double>(shape.parameters())), ", ", counted(shape.layers, "layer"));
  if (wish.parameters == 0) return shape;
  const double off = static_cast<double>(shape.parameters()) / static_cast<double>(wish.parameters) - 1;
  if (std::abs(off) <= kOff) return shape;
  return Status(Code::kUsage,
                text("model shape: ", layers, " layers ", hidden, " wide with an ffn of ", shape.ffn, " and ",
                     shape.vocab, " words has ", shape.parameters(), " parameters, not ", wish.parameters),
                text("--params ", shape.parameters(), ", which these sizes make"));
}

}  // namespace penstock::tools
