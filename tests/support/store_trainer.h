// StoreTrainer runs steps on a tile store the way an engine does (reads ahead, speculates, discards and redoes, lets a
// commit run under the next step), with an update so plain that any lost, stale or torn byte shows in the result.
//
// A tile's next bytes are a function of its bytes, its number, the step, and a random number that is drawn once a step
// and carried from step to step in the root. PlainTraining does the same on vectors in memory.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "aio/store/tile_store.h"

namespace penstock::aio {

struct TrainingNumbers {
  uint64_t step = 0;
  uint64_t random = 1;

  void draw();
  // Its state takes several pages, some of which change with every step and some rarely.
  RootPayload payload() const;
  // Nothing where a byte of the state is not as payload() makes it.
  static std::optional<TrainingNumbers> of(const RootPayload& payload);
};

// `struck` gives bytes that only a discarded update has.
void update_tile(const StoreShape& shape, TileId tile, std::span<std::byte> bytes, const TrainingNumbers& numbers,
                 bool struck);
Status initial_fill(TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes);

// All tiles of a shape as they are after `steps` steps.
class PlainTraining {
 public:
  // `shape` outlives it.
  explicit PlainTraining(const StoreShape& shape);
  void run(uint64_t steps);
  const std::vector<std::byte>& tile(TileId tile) const { return tiles_[tile]; }

 private:
  const StoreShape* shape_;
  TrainingNumbers numbers_;
  std::vector<std::vector<std::byte>> tiles_;
};

class StoreTrainer {
 public:
  StoreTrainer(IoEngine& engine, TileStore& store, uint32_t leases = 4);
  // Waits for the I/O under way, also after a failure.
  ~StoreTrainer();

  // One step. Its commit begins at once, or as soon as the one before it has ended. `every`: commits only every so many
  // steps.
  Status step(uint64_t every = 1);
  // Waits until every step so far is durable.
  Status settle();

  // The newest step whose root was said to be durable.
  uint64_t acknowledged() const { return acknowledged_; }
  void on_acknowledged(std::function<void(uint64_t)> function) { on_acknowledged_ = std::move(function); }
  const TrainingNumbers& numbers() const { return numbers_; }
  // Of tiles, those that were discarded included.
  uint64_t tile_bytes_written() const { return tile_bytes_written_; }

  // The current version of every tile, checked against its checksums; zero between planes.
  Result<std::vector<std::vector<std::byte>>> read_all();

 private:
  enum class Pass : uint8_t { speculative, struck, final };
  struct Work {
    TileId tile;
    Pass pass;
  };

  Status run(std::vector<Work> work);
  void try_commit();
  bool start_read(const Work& work);
  bool start_write(const Work& work, Lease& lease);
  void fail(const Status& why);
  template <typename Condition>
  Status wait_until(Condition condition);
  std::vector<uint64_t> checksums(TileId tile, std::span<const std::byte> bytes) const;

  IoEngine& engine_;
  TileStore& store_;
  Buffer memory_;
  BufferPool pool_;
  TrainingNumbers numbers_;
  std::optional<RootPayload> held_;  // of a step that has ended, until its commit may begin
  bool holds_back_ = false;
  uint64_t acknowledged_ = 0;
  uint64_t tile_bytes_written_ = 0;
  std::function<void(uint64_t)> on_acknowledged_;
  std::vector<std::pair<Work, Lease>> updated_;  // ready to be written
  uint32_t in_flight_ = 0;
  uint32_t reads_in_flight_ = 0;
  Status status_;
};

}  // namespace penstock::aio
