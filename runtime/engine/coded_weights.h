// A frozen unit that rests in codes: where these lie of each tile, and how they become the weights that are computed
// with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cpu_optim/block_codes.h"
#include "cpu_optim/update_workers.h"
#include "runtime/engine/mailbox.h"
#include "tiering/buffer.h"
#include "tiering/device.h"
#include "tiering/tile_map.h"

namespace penstock::engine {

class CodedUnit {
 public:
  // REQUIRES: the unit has a code. All that is named outlives it.
  CodedUnit(const Workload& workload, const TileMap& tiles, uint32_t unit);

  uint64_t elements() const { return unit_.elements; }
  uint64_t weight_size() const { return bytes_of(dtype_); }

  // What lies in one tile, whose bytes as they rest begin at `bytes`.
  struct TileCodes {
    cpu_optim::CodedRun run;
    uint64_t first_element = 0, elements = 0;  // in the unit
  };
  TileCodes codes_of(TileId tile, const std::byte* bytes) const;
  // Of the whole unit, whose tiles lie one after another from `bytes` on.
  std::vector<TileCodes> codes_of(const std::byte* bytes) const;

  // Elements [first, end) of the unit, into `target`, where element 0 lies. `bytes`: as above.
  void dequantise(const std::byte* bytes, uint64_t first, uint64_t end, std::byte* target) const;
  // Those of one tile that lie in [first, end), into `target`, where element `first` lies.
  void dequantise(const TileCodes& codes, uint64_t first, uint64_t end, std::byte* target) const;
  Dtype dtype() const { return dtype_; }

 private:
  const Unit& unit_;
  const TileMap& tiles_;
  const uint32_t number_;
  const Dtype dtype_;
};

// By the workers, from one place in host memory to another; `then` follows through `post`, when both leases have ended.
void dequantise_by(cpu_optim::UpdateWorkers& workers, const CodedUnit& unit, Lease codes, Lease weights,
                   const Post& post, std::function<void()> then);

// Both places are on the device. Put on its own stream, behind `after`; when it will have ended.
Result<Event> dequantise_on(Device& device, const CodedUnit& unit, std::span<const std::byte> codes,
                            std::span<std::byte> weights, std::span<const Event> after);

}  // namespace penstock::engine
