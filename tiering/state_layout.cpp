#include "tiering/state_layout.h"

namespace penstock {

uint64_t Plane::values(uint64_t elements) const {
  if (role == Role::momentum_scale || role == Role::variance_scale) return ceil_div(elements, kMomentBlockElements);
  if (role == Role::weight_scale) return ceil_div(elements, kCodeBlockElements);
  return dtype == Dtype::nf4_pair ? ceil_div(elements, 2) : elements;
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
    case Dtype::nf4_pair:
      return "nf4_pair";
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
    case Role::weight_scale:
      return "weight_scale";
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

const char* name_of(BlockCode code) {
  switch (code) {
    case BlockCode::int8:
      return "int8";
    case BlockCode::int4:
      return "int4";
    case BlockCode::nf4:
      return "nf4";
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
  const auto is_float = [](Dtype dtype) {
    return dtype == Dtype::fp32 || dtype == Dtype::bf16 || dtype == Dtype::fp16;
  };
  if (!is_float(form.weight) || !is_float(form.gradient)) {
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

std::vector<Plane> coded_planes(BlockCode code) {
  CHECK(code != BlockCode::int4, "no plane has int4 codes");
  return {{Role::weight, code == BlockCode::int8 ? Dtype::int8 : Dtype::nf4_pair}, {Role::weight_scale, Dtype::fp32}};
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
