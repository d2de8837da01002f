#include "cpu_optim/coded_records.h"

#include <algorithm>
#include <array>

#include "cpu_optim/flush_scope.h"
#include "cpu_optim/kernels.h"
#include "tiering/check.h"

namespace penstock::cpu_optim {
namespace {

constexpr uint64_t kPieceElements = 4096;  // in fp32 half of a first-level cache

struct Piece {
  alignas(64) std::array<float, kPieceElements> values;
  std::byte* bytes() { return reinterpret_cast<std::byte*>(values.data()); }
};

size_t index_of(BlockCode code) {
  CHECK(static_cast<size_t>(code) < kRecordCodes, "records are of int8 or int4, not of ", name_of(code));
  return static_cast<size_t>(code);
}

}  // namespace

RecordCodec::RecordCodec(Isa isa) : kernels_(&kernels_of(isa)), dtypes_(isa) {}

void RecordCodec::encode(BlockCode code, Dtype dtype, const std::byte* values, uint64_t elements,
                         std::byte* records) const {
  const EncodeKernel kernel = kernels_->encode[index_of(code)];
  Piece piece;
  for (uint64_t first = 0; first < elements; first += kPieceElements) {
    const uint64_t count = std::min(kPieceElements, elements - first), blocks = ceil_div(count, kCodeBlockElements);
    dtypes_.cast(dtype, values + first * bytes_of(dtype), Dtype::fp32, piece.bytes(), count);
    std::fill(piece.values.begin() + count, piece.values.begin() + blocks * kCodeBlockElements, 0.0f);
    const DenormalScope denormals_count;
    kernel(piece.values.data(), blocks, records + records_bytes(code, first));
  }
}

void RecordCodec::decode(BlockCode code, const std::byte* records, uint64_t elements, Dtype dtype,
                         std::byte* values) const {
  const DecodeKernel kernel = kernels_->decode[index_of(code)];
  Piece piece;
  for (uint64_t first = 0; first < elements; first += kPieceElements) {
    const uint64_t count = std::min(kPieceElements, elements - first);
    {
      const DenormalScope denormals_count;
      kernel(records + records_bytes(code, first), ceil_div(count, kCodeBlockElements), piece.values.data());
    }
    dtypes_.cast(Dtype::fp32, piece.bytes(), dtype, values + first * bytes_of(dtype), count);
  }
}

}  // namespace penstock::cpu_optim
