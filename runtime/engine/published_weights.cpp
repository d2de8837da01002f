#include "runtime/engine/published_weights.h"

#include <algorithm>

namespace penstock::engine {

PublishedWeights::PublishedWeights(std::span<const EmbeddedParameter> parameters, const Out& out)
    : parameters_(parameters), out_(out), notes_(parameters.size()) {}

bool PublishedWeights::any_wanted() const {
  for (uint32_t parameter = 0; parameter < parameters_.size(); ++parameter) {
    if (wanted(parameter)) return true;
  }
  return false;
}

void PublishedWeights::begin() {
  allowed_ = false;
  for (std::atomic<uint8_t>& note : notes_) note = 0;
}

void PublishedWeights::offer(uint32_t number, uint64_t first, std::span<const std::byte> masters) {
  if (!allowed_) {
    notes_[number] |= kMissed;
    return;
  }
  notes_[number] |= kGiven;
  give(number, first, masters);
}

void PublishedWeights::give(uint32_t number, uint64_t first, std::span<const std::byte> masters) {
  const EmbeddedParameter& parameter = parameters_[number];
  if (parameter.weights.out) return hand_out(number, first, masters);
  kernels_.cast(Dtype::fp32, masters.data(), parameter.dtype,
                parameter.weights.into + first * bytes_of(parameter.dtype), masters.size() / sizeof(float));
}

void PublishedWeights::hand_out(uint32_t number, uint64_t first, std::span<const std::byte> masters) {
  std::lock_guard lock(handing_out_);
  const Dtype dtype = parameters_[number].dtype;
  while (!masters.empty() && status_.ok()) {
    const uint64_t count = std::min<uint64_t>(masters.size() / sizeof(float), kPieceElements);
    std::span<const std::byte> piece = masters.first(count * sizeof(float));
    masters = masters.subspan(piece.size());
    if (dtype != Dtype::fp32) {
      rounded_.resize(kPieceElements * bytes_of(dtype));
      kernels_.cast(Dtype::fp32, piece.data(), dtype, rounded_.data(), count);
      piece = std::span(rounded_).first(count * bytes_of(dtype));
    }
    status_ = out_(number, first, dtype, piece);
    first += count;
  }
}

Status PublishedWeights::status() {
  std::lock_guard lock(handing_out_);
  return status_;
}

std::vector<uint32_t> PublishedWeights::noted(Note note) const {
  std::vector<uint32_t> parameters;
  for (uint32_t number = 0; number < notes_.size(); ++number) {
    if (notes_[number] & note) parameters.push_back(number);
  }
  return parameters;
}

}  // namespace penstock::engine
