#include "runtime/engine/device_sums.h"

#include <algorithm>

namespace penstock::engine {

void DeviceSums::begin_pass(const Compute& compute, Stream stream) {
  compute_ = &compute;
  stream_ = source_ = stream;
}

void DeviceSums::take_from(Stream stream) { source_ = stream; }

const Compute::Sum& DeviceSums::sum_of(uint32_t unit) const {
  const auto found = std::find_if(compute_->sums.begin(), compute_->sums.end(),
                                  [&](const Compute::Sum& sum) { return sum.unit == unit; });
  CHECK(found != compute_->sums.end(), "the plan adds up no gradient of unit ", unit, " in use ", compute_->use);
  return *found;
}

void DeviceSums::launch(const Kernel& kernel, Stream stream) {
  if (!status_.ok()) return;
  status_ = memory_.device().launch(kernel, stream).within("add up gradients");
}

void DeviceSums::order(Stream earlier, Stream later) {
  if (earlier == later || !status_.ok()) return;
  const Result<Event> event = memory_.device().record(earlier);
  status_ = event.ok() ? memory_.device().make_wait(later, *event) : event.status();
}

bool DeviceSums::starts_sum(uint32_t micro_batch) const { return micro_batch == 0 || !is_vertical(plan_); }

void DeviceSums::zero(uint32_t unit) {
  const uint64_t bytes = workload_.units[unit].elements * sizeof(float);
  launch(kernel::Fill{place(sum_of(unit).offset_bytes, bytes).data(), bytes, 0}, stream_);
}

void DeviceSums::add(const GradientIntake::Part& part, const GradientIntake::Values& values, uint64_t count) {
  const uint64_t offset_bytes = sum_of(part.unit).offset_bytes + part.first_element * sizeof(float);
  std::byte* const target = place(offset_bytes, count * sizeof(float)).data();
  order(stream_, source_);  // behind what was in the place
  if (starts_sum(part.micro_batch)) {
    launch(kernel::Cast{values.bytes.data(), target, values.dtype, Dtype::fp32, count}, source_);
  } else {
    launch(kernel::Accumulate{values.bytes.data(), values.dtype, reinterpret_cast<float*>(target), count}, source_);
  }
  order(source_, stream_);
}

void DeviceSums::round() {
  for (const Compute::Sum& sum : compute_->sums) {
    if (!sum.rounded_offset_bytes && !sum.stays) continue;
    const uint64_t elements = workload_.units[sum.unit].elements;
    const Dtype form = workload_.form.gradient;
    std::byte* const rounded = sum.stays ? memory_.gradient_of(sum.unit).data()
                                         : place(*sum.rounded_offset_bytes, elements * bytes_of(form)).data();
    launch(kernel::Cast{place(sum.offset_bytes, elements * sizeof(float)).data(), rounded, Dtype::fp32, form, elements},
           stream_);
    if (!sum.stays) continue;
    auto* const squares = reinterpret_cast<double*>(memory_.squares_of(sum.unit).data());
    launch(kernel::SquareSums{rounded, form, elements, squares}, stream_);
  }
}

}  // namespace penstock::engine
