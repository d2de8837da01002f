// Fills a table of kernels from Lanes. Each Isa has one source file that includes this and is compiled for that Isa.
#pragma once

#include <utility>

#include "cpu_optim/byte_update_kernel.h"
#include "cpu_optim/dequantise_kernel.h"
#include "cpu_optim/gradient_kernel.h"
#include "cpu_optim/kernels.h"
#include "cpu_optim/record_kernel.h"
#include "cpu_optim/update_kernel.h"

namespace penstock::cpu_optim {

template <class L, OptimizerKind kKind, MasterForm kMaster>
constexpr void fill_moment_forms(UpdateKernel (&kernels)[kMomentForms]) {
  kernels[static_cast<size_t>(MomentForm::fp32)] = &WordUpdatePass<L, kKind, kMaster, MomentForm::fp32>::run;
  kernels[static_cast<size_t>(MomentForm::bf16)] = &WordUpdatePass<L, kKind, kMaster, MomentForm::bf16>::run;
  kernels[static_cast<size_t>(MomentForm::int8)] = &ByteUpdatePass<L, kKind, kMaster>::run;
}

template <class L, OptimizerKind kKind>
constexpr void fill_optimizer(Kernels& kernels) {
  auto& forms = kernels.update[static_cast<size_t>(kKind)];
  fill_moment_forms<L, kKind, MasterForm::split>(forms[static_cast<size_t>(MasterForm::split)]);
  fill_moment_forms<L, kKind, MasterForm::full>(forms[static_cast<size_t>(MasterForm::full)]);
  fill_moment_forms<L, kKind, MasterForm::same>(forms[static_cast<size_t>(MasterForm::same)]);
}

template <class L, Dtype kSource, Dtype kTarget>
constexpr void fill_dtypes(Kernels& kernels) {
  constexpr size_t source = static_cast<size_t>(kSource), target = static_cast<size_t>(kTarget);
  kernels.cast[source][target] = &GradientPass<L>::template cast<kSource, kTarget>;
  kernels.sum[source][target] = &GradientPass<L>::template sum<kSource, kTarget>;
}

template <class L, Dtype kDtype>
constexpr void fill_dtype(Kernels& kernels) {
  constexpr size_t at = static_cast<size_t>(kDtype);
  kernels.square_sums[at] = &GradientPass<L>::template square_sums<kDtype>;
  kernels.accumulate[at] = &GradientPass<L>::template accumulate<kDtype>;
  fill_dtypes<L, kDtype, Dtype::fp32>(kernels);
  fill_dtypes<L, kDtype, Dtype::bf16>(kernels);
  fill_dtypes<L, kDtype, Dtype::fp16>(kernels);
}

template <class L, BlockCode kCode>
constexpr void fill_records(Kernels& kernels) {
  kernels.encode[static_cast<size_t>(kCode)] = &RecordPass<L, kCode>::encode;
  kernels.decode[static_cast<size_t>(kCode)] = &RecordPass<L, kCode>::decode;
}

template <class L, BlockCode kCode>
constexpr void fill_dequantise(Kernels& kernels) {
  auto& by_dtype = kernels.dequantise[static_cast<size_t>(kCode)];
  by_dtype[static_cast<size_t>(Dtype::fp32)] = &DequantisePass<L, kCode, Dtype::fp32>::run;
  by_dtype[static_cast<size_t>(Dtype::bf16)] = &DequantisePass<L, kCode, Dtype::bf16>::run;
  by_dtype[static_cast<size_t>(Dtype::fp16)] = &DequantisePass<L, kCode, Dtype::fp16>::run;
}

template <class L>
consteval Kernels kernel_table(Isa isa, uint32_t instructions) {
  Kernels kernels{};
  kernels.isa = isa;
  kernels.instructions = instructions;
  [&]<size_t... kAt>(std::index_sequence<kAt...>) {
    (fill_optimizer<L, kOptimizerKinds[kAt]>(kernels), ...);
  }(std::make_index_sequence<kOptimizerKinds.size()>());
  fill_dtype<L, Dtype::fp32>(kernels);
  fill_dtype<L, Dtype::bf16>(kernels);
  fill_dtype<L, Dtype::fp16>(kernels);
  fill_records<L, BlockCode::int8>(kernels);
  fill_records<L, BlockCode::int4>(kernels);
  fill_dequantise<L, BlockCode::int8>(kernels);
  fill_dequantise<L, BlockCode::nf4>(kernels);
  kernels.checksum = [](ChecksumLanes& lanes, const std::byte* stripes, uint64_t count, uint64_t first_stripe) {
    L::add_checksum_stripes(lanes, stripes, count, first_stripe);
  };
  return kernels;
}

}  // namespace penstock::cpu_optim
