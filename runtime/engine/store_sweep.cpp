#include "runtime/engine/store_sweep.h"

#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {

Status StoreSweep::run(std::span<const Visit> visits, const OnTile& on_tile, Then then) {
  on_tile_ = on_tile;
  then_ = then;
  aio::WindowedIo windowed(io_, windows_);
  windowed_ = &windowed;
  for (const Visit& visit : visits) {
    PENSTOCK_TRY_ASSIGN(window, windowed.free_window());
    PENSTOCK_TRY(begin(visit, std::move(window)));
  }
  return windowed.finish();
}

Status StoreSweep::begin(const Visit& visit, Lease window) {
  if (visit.range.length_bytes == 0) {
    arriving_.push_back({visit, {}, std::move(window)});
    return hand_on_arrived();
  }
  std::optional<aio::TileStore::Reading> reading = store_.begin_read(visit.tile, visit.range, visit.range.offset_bytes);
  if (!reading) return Status(Code::kEnvironment, text("read of tile ", visit.tile, ": it is still being written"));
  drive_bytes_.read_bytes += visit.range.length_bytes;
  const std::vector<Extent> extents = reading->extents;
  Arriving& arriving = arriving_.emplace_back(Arriving{visit, std::move(reading), {}});
  windowed_->read(extents, std::move(window), [this, &arriving](Result<Lease> read) {
    arriving.window = std::move(read);
    return hand_on_arrived();
  });
  return Status();
}

Status StoreSweep::hand_on_arrived() {
  Status first;
  while (!arriving_.empty() && arriving_.front().window) {
    Arriving next = std::move(arriving_.front());
    arriving_.pop_front();
    const Status status = end(std::move(next));
    if (first.ok()) first = status;
  }
  return first;
}

Status StoreSweep::end(Arriving arrived) {
  const TileId tile = arrived.visit.tile;
  Result<Lease>& window = *arrived.window;
  Status status = window.status();
  if (arrived.reading) {
    status = store_.read_status(arrived.reading->place, status);
    if (status.ok()) {
      status = compare_checksums(store_, *arrived.reading, arrived.visit.range, window->data());
    }
    store_.end_read(arrived.reading->place);
  }
  PENSTOCK_TRY(status);
  PENSTOCK_TRY(on_tile_(tile, window->data()));
  return then_ == Then::write ? write(tile, std::move(*window)) : Status();
}

Status StoreSweep::write(TileId tile, Lease window) {
  std::optional<aio::TileStore::Writing> writing;
  while (!writing) {
    PENSTOCK_TRY_ASSIGN(begun, store_.begin_write(tile, NewVersion::final));
    writing = std::move(begun);
    if (!writing) io_.wait(std::chrono::milliseconds(100));
  }
  std::vector<uint64_t> checksums = checksums_of(store_.shape(), tile, window.data());
  drive_bytes_.written_bytes += store_.whole(tile).length_bytes;
  windowed_->write(writing->extents, std::move(window),
                   [this, place = writing->place, sums = std::move(checksums)](const Result<Lease>& written) {
                     if (written.ok()) {
                       store_.written(place, sums);
                     } else {
                       store_.write_failed(place, written.status());
                     }
                     return written.status();
                   });
  return Status();
}

}  // namespace penstock::engine
