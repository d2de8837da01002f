#include "bench/support/store_rate.h"

#include "bench/support/store_access.h"

namespace penstock::bench {
namespace {

class StoreLoad {
 public:
  StoreLoad(StoreAccess& access, StoreTraffic& traffic) : access_(access), traffic_(traffic) {}

  Result<double> run() {
    BufferPool pool = access_.make_pool();
    const auto start = std::chrono::steady_clock::now();
    while (seconds_since(start) < traffic_.seconds && access_.refusal().ok()) {
      while (std::optional<Lease> lease = pool.try_lease()) issue(std::move(*lease));
      access_.engine().wait(std::chrono::milliseconds(10));
    }
    access_.engine().wait_until([this] { return access_.idle(); });
    PENSTOCK_TRY(access_.refusal());
    traffic_.first_tile += writes_;
    return static_cast<double>(access_.moved_bytes()) / seconds_since(start) / 1e9;
  }

 private:
  // Writes stay in one half of the store and reads in the other, so that neither catches up with the other.
  TileId in_half(uint64_t count, uint64_t half) const {
    const uint64_t tiles = access_.tiles();
    return (traffic_.first_tile + half * (tiles / 2) + count % (tiles / 2)) % tiles;
  }

  void issue(Lease lease) {
    aio::TileStore& store = access_.store();
    const TileId to_read = in_half(reads_, 1);
    const aio::TileStore::Range state = access_.state_of(to_read);
    if (read_bytes_ <= traffic_.read_share * static_cast<double>(access_.moved_or_asked_bytes())) {
      auto reading = store.begin_read(to_read, state);
      CHECK(reading.has_value());
      ++reads_;
      read_bytes_ += static_cast<double>(state.length_bytes);
      access_.follow(access_.engine().read(reading->extents, std::move(lease), IoEngine::kWhenever), state.length_bytes,
                     [this, place = reading->place](const Lease&) { access_.store().end_read(place); });
      return;
    }
    const TileId to_write = in_half(writes_, 0);
    const auto writing = store.begin_write(to_write, NewVersion::final).value();
    CHECK(writing.has_value(), "the store has one slot a tile");
    ++writes_;
    access_.follow(access_.engine().write(writing->extents, std::move(lease), IoEngine::kWhenever),
                   store.layout().tile_bytes(to_write), [this, place = writing->place, to_write](const Lease&) {
                     sums_.resize(checksum_count(access_.store().shape(), to_write));
                     access_.store().written(place, sums_);
                   });
  }

  StoreAccess& access_;
  StoreTraffic& traffic_;
  std::vector<uint64_t> sums_;
  uint64_t reads_ = 0, writes_ = 0;
  double read_bytes_ = 0;
};

}  // namespace

Result<double> measure_store_gbps(const std::vector<std::string>& folders, StoreTraffic& traffic) {
  PENSTOCK_TRY_ASSIGN(access, StoreAccess::open(folders));
  return StoreLoad(*access, traffic).run();
}

}  // namespace penstock::bench
