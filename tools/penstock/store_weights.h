// StoreWeights reads a model's weights out of its stores, one or those of several ranks, without an engine: tile by
// tile, in bounded memory, and nothing is written.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "aio/host_arena.h"
#include "runtime/trainer/config/train_config.h"
#include "runtime/trainer/model.h"
#include "tiering/buffer.h"
#include "tools/penstock/checkpoint_common.h"

namespace penstock::tools {

// The values of one tile, as it lies in memory.
class TileValues {
 public:
  TileValues(const TileLayout& layout, uint64_t elements, const std::byte* bytes)
      : layout_(layout), elements_(elements), bytes_(bytes) {}

  uint64_t elements() const { return elements_; }
  // What forward computes with.
  void weights(Dtype dtype, std::byte* target) const;
  // Frozen weights, and fp32 ones, are their own masters.
  void masters(std::span<float> into) const;

 private:
  const TileLayout layout_;
  const uint64_t elements_;
  const std::byte* bytes_;
};

class StoreWeights {
 public:
  enum class Planes : uint8_t { weights, weights_and_masters };
  using OnTile = std::function<Status(uint32_t unit, uint64_t first_element, const TileValues& values)>;

  // Refuses stores that have not all of the model, have another, or are not at one step. All that is named outlives it.
  static Result<std::unique_ptr<StoreWeights>> find(InspectedStores& stores, const trainer::TrainConfig& config,
                                                    const trainer::Model& model);

  // How many stores the model is cut into.
  size_t parts() const { return parts_.size(); }
  uint64_t tiles(std::span<const uint32_t> units) const;
  // Of the tiles under way.
  uint64_t memory_bytes() const { return arena_->bytes().size(); }

  // The tiles of these units, of one store after the other; in each, units as they are named, tiles by where they
  // begin. The bytes that were read.
  Result<uint64_t> read(std::span<const uint32_t> units, Planes planes, const OnTile& on_tile);

 private:
  // What one rank's store has of the model.
  struct Part {
    aio::TileStore* store = nullptr;
    aio::TileStore* never_updated = nullptr;  // where the tiles are that steps never update
    struct Place {
      uint32_t unit = 0;
      uint64_t first_element = 0;
    };
    std::vector<Place> places = {};  // by unit of the store; one more may stand in for those of other ranks
    std::vector<std::vector<TileId>> tiles = {};  // by unit of the model
  };

  explicit StoreWeights(IoEngine& io) : io_(io) {}
  static Result<Part> part_of(const InspectedStores& stores, uint32_t rank, const trainer::Model& model,
                              std::span<const uint64_t> first, std::span<const uint64_t> elements);
  Status take_memory();

  IoEngine& io_;
  std::vector<Part> parts_;
  std::unique_ptr<aio::HostArena> arena_;
  std::unique_ptr<BufferPool> windows_;
};

}  // namespace penstock::tools
