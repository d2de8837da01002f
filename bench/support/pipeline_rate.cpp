#include "bench/support/pipeline_rate.h"

#include <cstring>
#include <mutex>
#include <thread>

#include "bench/support/store_access.h"
#include "cpu_optim/update_workers.h"

namespace penstock::bench {
namespace {

class Pipeline {
 public:
  Pipeline(StoreAccess& access, const StateForm& form, StoreTraffic& traffic)
      : access_(access), form_(form), traffic_(traffic), updater_(form) {
    whole_.numbers.coefficients = make_coefficients(form.optimizer, Hyper(), 1);
    uint64_t bytes = 0;
    for (const StoreShape::Tile& tile : access.store().shape().tiles) {
      resting_offsets_.push_back(bytes);
      bytes += round_up(tile.elements * (bytes_of(form.weight) + bytes_of(form.gradient)), kAlignmentBytes);
    }
    resting_ = Buffer::on_heap(bytes);
    std::memset(resting_.data(), 0, bytes);
  }

  Result<double> run() {
    BufferPool pool = access_.make_pool();
    const auto start = std::chrono::steady_clock::now();
    bool over = false;
    do {
      over = seconds_since(start) >= traffic_.seconds || !access_.refusal().ok();
      while (!over) {
        std::optional<Lease> lease = pool.try_lease();
        if (!lease) break;
        begin_read(std::move(*lease));
      }
      // Shorter and longer sleeps, or waking for what has been updated, give no more: tried from 20 to 200 us.
      if (access_.engine().poll() + write_updated() == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    } while (!over || !access_.idle() || updating_ > 0);
    PENSTOCK_TRY(access_.refusal());
    traffic_.first_tile += reads_;
    return static_cast<double>(access_.moved_bytes()) / seconds_since(start) / 1e9;
  }

 private:
  struct Window {
    TileId tile = 0;
    Lease lease;
    std::vector<uint64_t> checksums;
  };

  void begin_read(Lease lease) {
    const TileId tile = (traffic_.first_tile + reads_++) % access_.tiles();
    const aio::TileStore::Range state = access_.state_of(tile);
    auto reading = access_.store().begin_read(tile, state, state.offset_bytes);
    CHECK(reading.has_value());
    access_.follow(access_.engine().read(reading->extents, std::move(lease), IoEngine::kWhenever), state.length_bytes,
                   [this, place = reading->place](Lease window) {
                     access_.store().end_read(place);
                     begin_update(place.tile, std::move(window));
                   });
  }

  void begin_update(TileId tile, Lease lease) {
    auto window = std::make_shared<Window>(Window{tile, std::move(lease), {}});
    const uint64_t elements = access_.store().shape().tiles[tile].elements;
    window->checksums.resize(checksum_count(access_.store().shape(), tile));
    std::byte* weight = resting_.data() + resting_offsets_[tile];
    cpu_optim::TileJob job;
    job.updater = &updater_;
    job.numbers = {&whole_, 1};
    job.tile = cpu_optim::TileView::in_place(TileLayout(form_, elements),
                                             window->lease.data() + access_.state_of(tile).offset_bytes, weight,
                                             weight + elements * bytes_of(form_.weight), elements, 0);
    job.notes.target_checksums = window->checksums;
    job.notes.expected_checksums = window->checksums;  // for the work of comparing; nobody asks for the outcome
    ++updating_;
    workers_.enqueue(job, [this, window](const cpu_optim::TileReport&) {
      std::lock_guard lock(mutex_);
      updated_.push_back(window);
    });
  }

  // Half a store away from where they were read: since nothing is committed, the slot that was read is the free one,
  // and would still be in a cache.
  size_t write_updated() {
    std::vector<std::shared_ptr<Window>> updated;
    {
      std::lock_guard lock(mutex_);
      updated.swap(updated_);
    }
    updating_ -= updated.size();
    for (const std::shared_ptr<Window>& window : updated) {
      const TileId target = (window->tile + access_.tiles() / 2) % access_.tiles();
      const auto writing = access_.store().begin_write(target, NewVersion::final).value();
      CHECK(writing.has_value(), "the store has one slot a tile");
      window->checksums.resize(checksum_count(access_.store().shape(), target));
      access_.follow(access_.engine().write(writing->extents, std::move(window->lease), IoEngine::kWhenever),
                     access_.store().layout().tile_bytes(target), [this, window, place = writing->place](const Lease&) {
                       access_.store().written(place, window->checksums);
                     });
    }
    return updated.size();
  }

  StoreAccess& access_;
  const StateForm& form_;
  StoreTraffic& traffic_;
  const cpu_optim::TileUpdater updater_;
  NumbersRun whole_;
  // Every tile's weight and its gradient behind it, so that both come as cold as a model's.
  Buffer resting_;
  std::vector<uint64_t> resting_offsets_;  // by tile
  uint64_t reads_ = 0, updating_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Window>> updated_;  // GUARDED_BY(mutex_)
  cpu_optim::UpdateWorkers workers_;              // ends first: it waits for what is under way
};

}  // namespace

Result<double> measure_pipeline_gbps(const std::vector<std::string>& folders, const StateForm& form,
                                     StoreTraffic& traffic) {
  PENSTOCK_TRY_ASSIGN(access, StoreAccess::open(folders));
  return Pipeline(*access, form, traffic).run();
}

}  // namespace penstock::bench
