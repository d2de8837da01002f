#include "tests/support/ordered_device.h"

namespace penstock::test {
namespace {

using Run = AccessOrder::Run;

struct Describe {
  Run values(const void* data, Dtype dtype, uint64_t elements) const { return {data, elements * bytes_of(dtype)}; }
  Run codes(const void* data, BlockCode code, uint64_t elements) const {
    return {data, coded_planes(code).front().bytes(elements)};
  }
  Run scales(const float* data, uint64_t elements, uint32_t block) const {
    return {data, (elements + block - 1) / block * sizeof(float)};
  }

  KernelAccesses operator()(const kernel::Fill& of) const { return {"a filling", {}, {{of.target, of.bytes}}}; }
  KernelAccesses operator()(const kernel::Cast& of) const {
    return {
        "a cast", {values(of.source, of.source_dtype, of.elements)}, {values(of.target, of.target_dtype, of.elements)}};
  }
  KernelAccesses operator()(const kernel::Accumulate& of) const {
    return {"an addition",
            {values(of.source, of.source_dtype, of.elements)},
            {values(of.target, Dtype::fp32, of.elements)}};
  }
  KernelAccesses operator()(const kernel::Scale& of) const {
    return {"a scaling", {}, {values(of.values, of.dtype, of.elements)}};
  }
  KernelAccesses operator()(const kernel::SquareSums& of) const {
    const uint64_t blocks = (of.elements + kBlockElements - 1) / kBlockElements;
    return {"a norm", {values(of.values, of.dtype, of.elements)}, {{of.sums, blocks * sizeof(double)}}};
  }
  KernelAccesses operator()(const kernel::RoundStochastic& of) const {
    return {"a rounding", {values(of.source, Dtype::fp32, of.elements)}, {values(of.target, Dtype::bf16, of.elements)}};
  }
  KernelAccesses operator()(const kernel::UpdateTile& of) const {
    KernelAccesses all{"an update",
                       {values(of.gradient, of.form.gradient, of.elements)},
                       {values(of.weight, of.form.weight, of.elements)}};
    const std::vector<Plane> planes = resting_planes(of.form);
    for (size_t i = 0; i < planes.size(); ++i) all.writes.push_back({of.planes[i], planes[i].bytes(of.elements)});
    return all;
  }
  KernelAccesses operator()(const kernel::Quantise& of) const {
    return {"a quantisation",
            {values(of.source, of.source_dtype, of.elements)},
            {codes(of.codes, of.code, of.elements), scales(of.absmax, of.elements, of.block_elements)}};
  }
  KernelAccesses operator()(const kernel::Dequantise& of) const {
    return {"a dequantisation",
            {codes(of.codes, of.code, of.elements), scales(of.absmax, of.elements, of.block_elements)},
            {values(of.target, of.target_dtype, of.elements)}};
  }
};

}  // namespace

KernelAccesses accesses_of(const Kernel& kernel) { return std::visit(Describe(), kernel); }

}  // namespace penstock::test
