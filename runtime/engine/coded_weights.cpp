#include "runtime/engine/coded_weights.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock::engine {

CodedUnit::CodedUnit(const Workload& workload, const TileMap& tiles, uint32_t unit)
    : unit_(workload.units[unit]), tiles_(tiles), number_(unit), dtype_(workload.form.weight) {
  CHECK(unit_.code.has_value(), "unit ", unit_.name, " has no codes");
}

CodedUnit::TileCodes CodedUnit::codes_of(TileId tile, const std::byte* bytes) const {
  const Tile& shape = tiles_[tile];
  const TileLayout layout(coded_planes(*unit_.code), shape.elements);
  const auto* scales = reinterpret_cast<const float*>(bytes + layout.find(Role::weight_scale)->offset_bytes);
  return {{*unit_.code, bytes + layout.find(Role::weight)->offset_bytes, scales}, shape.first_element, shape.elements};
}

std::vector<CodedUnit::TileCodes> CodedUnit::codes_of(const std::byte* bytes) const {
  std::vector<TileCodes> all;
  for (TileId tile = tiles_.first_of(number_); tile < tiles_.first_of(number_ + 1); ++tile) {
    all.push_back(codes_of(tile, bytes));
    bytes += tiles_[tile].weight_bytes;
  }
  return all;
}

void CodedUnit::dequantise(const std::byte* bytes, uint64_t first, uint64_t end, std::byte* target) const {
  for (const TileCodes& codes : codes_of(bytes)) {
    const uint64_t from = std::max(first, codes.first_element);
    if (from < std::min(end, codes.first_element + codes.elements)) {
      dequantise(codes, from, end, target + from * weight_size());
    }
  }
}

void CodedUnit::dequantise(const TileCodes& codes, uint64_t first, uint64_t end, std::byte* target) const {
  const uint64_t from = std::max(first, codes.first_element), to = std::min(end, codes.first_element + codes.elements);
  if (from >= to) return;
  cpu_optim::dequantise(codes.run, from - codes.first_element, to - from, dtype_,
                        target + (from - first) * weight_size());
}

void dequantise_by(cpu_optim::UpdateWorkers& workers, const CodedUnit& unit, Lease codes, Lease weights,
                   const Post& post, std::function<void()> then) {
  struct Places {
    Lease codes, weights;
  };
  auto places = std::make_shared<Places>(Places{std::move(codes), std::move(weights)});
  const std::byte* const source = places->codes.data();
  std::byte* const target = places->weights.data();
  workers.enqueue_pieces(
      unit.elements(), kBlockElements,
      [unit, source, target](uint64_t first, uint64_t end) { unit.dequantise(source, first, end, target); },
      [post, held = std::move(places), answer = std::move(then)]() mutable {
        // Leases end where they began.
        post([taken = std::move(held), answer = std::move(answer)]() mutable {
          taken.reset();
          answer();
        });
      });
}

Result<Event> dequantise_on(Device& device, const CodedUnit& unit, std::span<const std::byte> codes,
                            std::span<std::byte> weights, std::span<const Event> after) {
  const Stream stream = device.kernel_stream();
  for (const Event& event : after) PENSTOCK_TRY(device.make_wait(stream, event));
  for (const CodedUnit::TileCodes& tile : unit.codes_of(codes.data())) {
    const kernel::Dequantise kernel{.code = tile.run.code,
                                    .codes = tile.run.codes,
                                    .absmax = tile.run.scales,
                                    .target = weights.data() + tile.first_element * unit.weight_size(),
                                    .target_dtype = unit.dtype(),
                                    .elements = tile.elements,
                                    .block_elements = kCodeBlockElements};
    PENSTOCK_TRY(device.launch(kernel, stream));
  }
  return device.record(stream);
}

}  // namespace penstock::engine
