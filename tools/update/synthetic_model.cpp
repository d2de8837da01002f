#include "tools/update/synthetic_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace penstock::tools {
namespace {

constexpr uint64_t kBeginnings = 1 << 16;  // places in the pattern where a gradient may begin
constexpr float kGradientSize = 1e-3f;

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Evenly in [-1, 1).
float signed_share(uint64_t x) { return static_cast<float>(static_cast<int64_t>(x) >> 40) * 0x1p-23f; }

// A square matrix of nearly all elements, behind a norm and before a bias as long as its rows. They lie without gaps.
std::vector<Parameter> parameters_of(const std::string& unit, uint64_t elements) {
  const auto side = static_cast<uint64_t>(std::sqrt(static_cast<double>(elements)));
  const uint64_t row = round_down(side, kParameterAlignmentElements);
  if (row == 0) return {{unit + ".weight", 0, elements, SyntheticModel::kMatrices}};
  const uint64_t bias = round_down(elements - row, kParameterAlignmentElements);
  return {{unit + ".norm", 0, row, SyntheticModel::kVectors},
          {unit + ".weight", row, bias - row, SyntheticModel::kMatrices},
          {unit + ".bias", bias, elements - bias, SyntheticModel::kVectors}};
}

}  // namespace

uint64_t SyntheticModel::usual_unit_elements(uint64_t parameters) {
  return std::clamp<uint64_t>(round_up(parameters / 32, kBlockElements), kBlockElements, uint64_t{16} << 20);
}

SyntheticModel::SyntheticModel(uint64_t parameters, uint64_t unit_elements, uint64_t seed)
    : parameters_(parameters), seed_(seed) {
  for (uint64_t first = 0; first < parameters; first += unit_elements) {
    Unit unit;
    unit.name = text("unit", units_.size());
    unit.elements = std::min(unit_elements, parameters - first);
    unit.parameters = parameters_of(unit.name, unit.elements);
    units_.push_back(std::move(unit));
  }
  pattern_.resize(std::min(unit_elements, parameters) + kBeginnings);
  for (size_t i = 0; i < pattern_.size(); ++i) {
    float value = signed_share(mixed(seed * 0x9e3779b97f4a7c15u + i)) * kGradientSize;
    pattern_[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
}

void SyntheticModel::initial(uint32_t unit, uint64_t first, std::span<float> values) const {
  const uint64_t begin = mixed(seed_ ^ (uint64_t{unit} << 32)) + first;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = signed_share((begin + i) * 0x9e3779b97f4a7c15u) * 0.02f;
  }
}

std::span<const std::byte> SyntheticModel::gradient(uint64_t step, uint32_t unit) const {
  const uint64_t begin = mixed(mixed(seed_ + step) + unit) % kBeginnings;
  return std::as_bytes(std::span(pattern_)).subspan(begin * 2, units_[unit].elements * 2);
}

double SyntheticModel::gradient_norm() const {
  return std::sqrt(static_cast<double>(parameters_) / 3) * static_cast<double>(kGradientSize);
}

}  // namespace penstock::tools
