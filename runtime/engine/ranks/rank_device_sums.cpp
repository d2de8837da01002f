#include "runtime/engine/ranks/rank_device_sums.h"

#include <algorithm>

namespace penstock::engine {

void RankDeviceSums::begin_pass(uint32_t use, Stream stream) {
  if (has_begun_) order(stream_, stream);  // a trainer may come back on another
  has_begun_ = true;
  use_ = use;
  stream_ = source_ = stream;
}

std::span<std::byte> RankDeviceSums::sum_of(uint32_t unit, size_t number_of_use) const {
  const uint64_t bytes = workload_.units[unit].elements * bytes_of(sum_dtype(workload_, unit));
  return device_.memory(layout_.offset_bytes[unit][number_of_use], bytes);
}

std::span<std::byte> RankDeviceSums::sum_here(uint32_t unit) const {
  const std::vector<uint32_t> uses = uses_of(workload_, unit);
  return sum_of(unit, static_cast<size_t>(std::find(uses.begin(), uses.end(), use_) - uses.begin()));
}

void RankDeviceSums::launch(const Kernel& kernel, Stream stream) {
  if (status_.ok()) status_ = device_.launch(kernel, stream).within("add up gradients");
}

void RankDeviceSums::order(Stream earlier, Stream later) {
  if (earlier == later || !status_.ok()) return;
  const Result<Event> event = device_.record(earlier);
  status_ = event.ok() ? device_.make_wait(later, {*event}) : event.status();
}

void RankDeviceSums::zero(uint32_t unit) {
  const std::span<std::byte> sum = sum_here(unit);
  launch(kernel::Fill{sum.data(), sum.size(), 0}, stream_);
}

void RankDeviceSums::add(const GradientIntake::Part& part, const GradientIntake::Values& values, uint64_t count) {
  const Dtype dtype = sum_dtype(workload_, part.unit);
  std::byte* const target = sum_here(part.unit).data() + part.first_element * bytes_of(dtype);
  order(stream_, source_);  // behind what was in the place
  if (part.micro_batch == 0) {
    launch(kernel::Cast{values.bytes.data(), target, values.dtype, dtype, count}, source_);
  } else {
    launch(kernel::Accumulate{values.bytes.data(), values.dtype, reinterpret_cast<float*>(target), count}, source_);
  }
  order(source_, stream_);
}

void RankDeviceSums::give(uint32_t unit, bool has_values, std::span<std::byte> target) {
  if (!has_values) return launch(kernel::Fill{target.data(), target.size(), 0}, stream_);
  const uint64_t elements = workload_.units[unit].elements;
  const std::span<std::byte> joined = sum_of(unit, 0);
  for (size_t use = 1; use < layout_.offset_bytes[unit].size(); ++use) {
    launch(kernel::Accumulate{sum_of(unit, use).data(), Dtype::fp32, reinterpret_cast<float*>(joined.data()), elements},
           stream_);
  }
  launch(kernel::Cast{joined.data(), target.data(), sum_dtype(workload_, unit), workload_.form.gradient, elements},
         stream_);
}

Result<Event> RankDeviceSums::given() {
  PENSTOCK_TRY(status_);
  return device_.record(stream_);
}

}  // namespace penstock::engine
