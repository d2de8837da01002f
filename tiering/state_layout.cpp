#include "tiering/state_layout.h"

namespace penstock {

uint64_t Plane::values(uint64_t elements) const {
  const bool is_scale = role == Role::momentum_scale || role == Role::variance_scale;
  return is_scale ? ceil_div(elements, kMomentBlockElements) : elements;
}

const char* name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp32:
      return "fp32";
    case Dtype::bf16:
      return "bf16";
    case Dtype::fp16:
      return "fp16";
    case Dtype::int8:
      return "int8";
    case Dtype::uint16:
      return "uint16";
  }
  return "?";
}

const char* name_of(Role role) {
  switch (role) {
    case Role::weight:
      return "weight";
    case Role::gradient:
      return "gradient";
    case Role::master:
      return "master";
    case Role::master_low:
      return "master_low";
    case Role::momentum:
      return "momentum";
    case Role::variance:
      return "variance";
    case Role::momentum_scale:
      return "momentum_scale";
    case Role::variance_scale:
      return "variance_scale";
  }
  return "?";
}

const char* name_of(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
      return "adamw";
    case OptimizerKind::adam:
      return "adam";
    case OptimizerKind::adagrad:
      return "adagrad";
    case OptimizerKind::lion:
      return "lion";
    case OptimizerKind::sgd:
      return "sgd";
  }
  return "?";
}

Status validate(const StateForm& form) {
  if (form.master == MasterForm::split && form.weight != Dtype::bf16) {
    return Status(Code::kUsage, text("state form: a split master needs a bf16 weight, not ", name_of(form.weight)),
                  "use master: full, or weight: bf16");
  }
  if ((form.master == MasterForm::same) != (form.weight == Dtype::fp32)) {
    return Status(Code::kUsage, "state form: an fp32 weight is its own master, and only an fp32 weight is",
                  "use master: same with weight: fp32");
  }
  if (form.weight == Dtype::int8 || form.weight == Dtype::uint16 || form.gradient == Dtype::int8 ||
      form.gradient == Dtype::uint16) {
    return Status(Code::kUsage,
                  text("state form: weight ", name_of(form.weight), " with gradient ", name_of(form.gradient),
                       " cannot be trained"),
                  "weights and gradients are fp32, bf16 or fp16");
  }
  return Status();
}

std::vector<Plane> resting_planes(const StateForm& form) {
  std::vector<Plane> planes;
  if (form.master == MasterForm::split) planes.push_back({Role::master_low, Dtype::uint16});
  if (form.master == MasterForm::full) planes.push_back({Role::master, Dtype::fp32});

  Dtype moment = form.moments == MomentForm::fp32   ? Dtype::fp32
                 : form.moments == MomentForm::bf16 ? Dtype::bf16
                                                    : Dtype::int8;
  if (has_momentum(form.optimizer)) planes.push_back({Role::momentum, moment});
  if (has_variance(form.optimizer)) planes.push_back({Role::variance, moment});
  if (form.moments == MomentForm::int8) {
    if (has_momentum(form.optimizer)) planes.push_back({Role::momentum_scale, Dtype::fp32});
    if (has_variance(form.optimizer)) planes.push_back({Role::variance_scale, Dtype::fp32});
  }
  return planes;
}

TileLayout::TileLayout(std::span<const Plane> planes, uint64_t elements) {
  for (const Plane& plane : planes) {
    places.push_back({plane, size_bytes, plane.bytes(elements)});
    size_bytes += round_up(plane.bytes(elements), kAlignmentBytes);
  }
}

const TileLayout::Place* TileLayout::find(Role role) const {
  for (const Place& place : places) {
    if (place.plane.role == role) return &place;
  }
  return nullptr;
}

}  // namespace penstock
