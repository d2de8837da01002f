#include "tools/train/store_link.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "runtime/trainer/torch/refusals.h"

namespace penstock::tools {
namespace {

uint64_t bytes_of_unit(const trainer::Model& model, uint32_t unit) {
  return model.units.at(unit).elements * bytes_of(model.dtype);
}

Status forward_alone() {
  return Status(Code::kUsage, "weights that are read from stores are for forward passes alone");
}

}  // namespace

uint64_t largest_use_bytes(const trainer::Model& model) {
  uint64_t most = 0;
  for (const trainer::ModelUse& use : model.uses) {
    uint64_t bytes = 0;
    for (uint32_t unit : use.units) bytes += bytes_of_unit(model, unit);
    most = std::max(most, bytes);
  }
  return most;
}

Status StoreLink::bring(uint32_t unit) {
  const uint64_t bytes = bytes_of_unit(model_, unit), size = bytes_of(model_.dtype);
  Held held;
  PENSTOCK_TRY(trainer::without_exceptions(nullptr, [&] {
    held.bytes = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
    return Status();
  }));
  const std::span<std::byte> all = trainer::bytes_of(held.bytes);
  const uint32_t units[] = {unit};
  const auto take = [&](uint32_t, uint64_t first, const TileValues& values) {
    values.weights(model_.dtype, all.subspan(first * size, values.elements() * size).data());
    return Status();
  };
  PENSTOCK_TRY(weights_.read(units, StoreWeights::Planes::weights, take).status());
  held.stays = staying_bytes_ + bytes <= stay_bytes_;
  if (held.stays) staying_bytes_ += bytes;
  held_[unit] = std::move(held);
  return Status();
}

Result<std::vector<trainer::UnitWeights>> StoreLink::acquire(const trainer::ComputePass& pass) {
  std::vector<trainer::UnitWeights> lent;
  for (uint32_t unit : model_.uses.at(pass.use).units) {
    if (!held_.contains(unit)) PENSTOCK_TRY(bring(unit));
    lent.push_back({unit, model_.units[unit].elements, trainer::bytes_of(std::as_const(held_[unit].bytes))});
  }
  return lent;
}

Status StoreLink::release(const trainer::ComputePass&) {
  std::erase_if(held_, [](const auto& unit) { return !unit.second.stays; });
  return Status();
}

Status StoreLink::gradient(const trainer::ComputePass&, uint32_t, uint64_t, Dtype, std::span<const std::byte>) {
  return forward_alone();
}
Status StoreLink::put(uint32_t, uint32_t, uint32_t, std::span<const std::byte>) { return forward_alone(); }
Status StoreLink::get(uint32_t, uint32_t, uint32_t, std::span<std::byte>) { return forward_alone(); }

}  // namespace penstock::tools
