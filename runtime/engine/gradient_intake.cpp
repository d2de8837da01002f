#include "runtime/engine/gradient_intake.h"

#include <algorithm>
#include <cstring>

namespace penstock::engine {
GradientIntake::GradientIntake(const Workload& workload, std::span<std::byte> memory)
    : workload_(workload), memory_(memory), units_(workload.units.size()) {
  piece_bytes_ = accumulator_bytes(workload);
  for (uint64_t at = 0; piece_bytes_ > 0 && at + piece_bytes_ <= memory.size(); at += piece_bytes_) {
    free_.push_back(reinterpret_cast<float*>(memory.data() + at));
  }
}

void GradientIntake::begin(uint32_t micro_batches) {
  micro_batches_ = micro_batches;
  for (UnitState& unit : units_) {
    if (unit.sum != nullptr) free_.push_back(unit.sum);
    unit = UnitState();
  }
}

Result<GradientIntake::Taken> GradientIntake::take(uint32_t index, uint32_t micro_batch, Dtype dtype,
                                                   std::span<const std::byte> values) {
  auto refuse = [&](const std::string& why) {
    return Status(Code::kUsage, text("gradient: unit ", index, ", micro-batch ", micro_batch, ": ", why));
  };
  if (index >= units_.size()) return refuse(text("there are ", units_.size(), " units"));
  const Unit& unit = workload_.units[index];
  UnitState& state = units_[index];
  if (!unit.trainable) return refuse("the unit is frozen");
  if (values.size() != unit.elements * bytes_of(dtype)) {
    return refuse(text(values.size(), " B given, ", unit.elements, " elements of ", name_of(dtype), " expected"));
  }
  if (micro_batch >= micro_batches_) return refuse(text("the step has ", micro_batches_, " micro-batches"));
  if (state.done) return refuse("the gradient is complete already");
  const uint64_t of_earlier = uint64_t{micro_batch} * unit.uses;
  if (state.contributions < of_earlier)
    return refuse(text("comes before micro-batch ", state.contributions / unit.uses));
  if (state.contributions >= of_earlier + unit.uses) return refuse("has come already");
  const bool completes = state.contributions + 1 == micro_batches_ * unit.uses;
  if (!completes && state.sum == nullptr && free_.empty()) {
    return Status(Code::kDoesNotFit,
                  text("gradient: unit ", index, ": no memory to add up in: ", memory_.size(),
                       " B are planned for units whose micro-batches come one unit after another"),
                  "plan with micro_batch_group 1 if micro-batches come one after another");
  }
  state.last_micro_batch = micro_batch;
  ++state.contributions;
  if (completes) {
    state.done = true;
    return Taken::completes;
  }
  if (state.sum == nullptr) {
    state.sum = free_.back();
    free_.pop_back();
    kernels_.cast(dtype, values.data(), Dtype::fp32, reinterpret_cast<std::byte*>(state.sum), unit.elements);
  } else {
    kernels_.accumulate(dtype, values.data(), state.sum, unit.elements);
  }
  return Taken::added;
}

void GradientIntake::finish(uint32_t index, Dtype dtype, std::span<const std::byte> values, uint64_t first,
                            uint64_t count, std::byte* target, std::span<double> squares) {
  const std::byte* last = values.data() + first * bytes_of(dtype);
  const Dtype form = workload_.form.gradient;
  if (float* sum = units_[index].sum) {
    kernels_.accumulate(dtype, last, sum + first, count);
    kernels_.cast(Dtype::fp32, reinterpret_cast<const std::byte*>(sum + first), form, target, count);
  } else if (dtype == form) {
    std::memcpy(target, last, count * bytes_of(form));
  } else {
    kernels_.cast(dtype, last, form, target, count);
  }
  kernels_.square_sums(form, target, count, squares);
}

std::string GradientIntake::why_not_absent(uint32_t index) const {
  const UnitState& state = units_[index];
  if (state.done) return state.contributions > 0 ? " has one" : " was declared absent";
  return state.contributions > 0 ? text(" has one of micro-batch ", state.last_micro_batch) : "";
}

void GradientIntake::finished(uint32_t index) {
  if (units_[index].sum == nullptr) return;
  free_.push_back(units_[index].sum);
  units_[index].sum = nullptr;
}

}  // namespace penstock::engine
