#include "bench/support/store_rate.h"

#include <chrono>
#include <thread>

#include "aio/direct_folder.h"
#include "aio/host_arena.h"
#include "aio/make_engine.h"
#include "aio/tile_store.h"
#include "cpu_optim/checksum.h"

namespace penstock::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMemoryBytes = 16 * kMiB;  // for each drive; more would be cold

class StoreLoad {
 public:
  StoreLoad(IoEngine& engine, aio::TileStore& store, StoreTraffic& traffic, UpdatesBeside* beside)
      : engine_(engine), store_(store), traffic_(traffic), beside_(beside), tiles_(store.shape().tiles.size()) {}

  Result<double> run(std::span<std::byte> memory) {
    uint64_t tile_bytes = 0;
    for (TileId tile = 0; tile < tiles_; ++tile) tile_bytes = std::max(tile_bytes, store_.layout().tile_bytes(tile));
    BufferPool pool(Tier::host, memory, tile_bytes);
    const Clock::time_point start = Clock::now();
    const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    while (seconds() < traffic_.seconds) {
      while (!behind()) {
        std::optional<Lease> lease = pool.try_lease();
        if (!lease) break;
        issue(std::move(*lease));
      }
      engine_.wait(std::chrono::milliseconds(10));
      if (behind() && under_way_ == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));  // for the updates
      PENSTOCK_TRY(refusal_);
    }
    engine_.wait_until([this] { return under_way_ == 0; });
    PENSTOCK_TRY(refusal_);
    traffic_.first_tile += writes_;
    return static_cast<double>(moved_bytes_) / seconds() / 1e9;
  }

 private:
  bool behind() const { return beside_ != nullptr && beside_->behind(); }

  // Reads go on half a store away from the writes.
  void issue(Lease lease) {
    const TileId to_read = (traffic_.first_tile + tiles_ / 2 + reads_) % tiles_;
    const uint64_t state_offset = store_.shape().layout(to_read).places.at(1).offset_bytes;
    const uint64_t state_bytes = store_.layout().tile_bytes(to_read) - state_offset;
    if (read_bytes_ <= traffic_.read_share * static_cast<double>(moved_bytes_ + asked_bytes_)) {
      auto reading = store_.begin_read(to_read, {state_offset, state_bytes});
      CHECK(reading.has_value());
      ++reads_;
      read_bytes_ += static_cast<double>(state_bytes);
      follow(engine_.read(reading->extents, std::move(lease), IoEngine::kWhenever), state_bytes,
             [this, place = reading->place] { store_.end_read(place); });
      return;
    }
    const TileId to_write = (traffic_.first_tile + writes_) % tiles_;
    const auto writing = store_.begin_write(to_write, Update::final).value();
    CHECK(writing.has_value(), "the store has one slot a tile");
    ++writes_;
    if (beside_ != nullptr) beside_->begin_one();
    follow(engine_.write(writing->extents, std::move(lease), IoEngine::kWhenever), store_.layout().tile_bytes(to_write),
           [this, place = writing->place, to_write] {
             sums_.resize(checksum_count(store_.shape(), to_write));
             store_.written(place, sums_);
           });
  }

  void follow(Transfer transfer, uint64_t bytes, std::function<void()> ended) {
    ++under_way_;
    asked_bytes_ += bytes;
    std::move(transfer).then([this, bytes, ended = std::move(ended)](Result<Lease> back) {
      --under_way_;
      asked_bytes_ -= bytes;
      moved_bytes_ += bytes;
      if (back.ok()) {
        ended();
      } else {
        refusal_ = back.status();
      }
    });
  }

  IoEngine& engine_;
  aio::TileStore& store_;
  StoreTraffic& traffic_;
  UpdatesBeside* const beside_;
  const uint64_t tiles_;
  std::vector<uint64_t> sums_;
  uint64_t reads_ = 0, writes_ = 0, under_way_ = 0, moved_bytes_ = 0, asked_bytes_ = 0;
  double read_bytes_ = 0;
  Status refusal_;
};

}  // namespace

Result<double> measure_store_gbps(const std::vector<std::string>& folders, StoreTraffic& traffic,
                                  UpdatesBeside* beside) {
  PENSTOCK_TRY_ASSIGN(made, aio::make_engine());
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(kMemoryBytes * folders.size()));
  made.engine->register_memory(arena->bytes());
  const auto drives = aio::direct_folders(folders);
  aio::OpenOptions open;
  open.checksum = cpu_optim::checksum_function();
  PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*made.engine, drives, open));
  return StoreLoad(*made.engine, *store, traffic, beside).run(arena->bytes());
}

}  // namespace penstock::bench
