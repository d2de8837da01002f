#include "runtime/engine/store_pass.h"

#include "runtime/engine/tile_checksums.h"

namespace penstock::engine {

Status StorePass::run(std::span<const Visit> visits, const Use& use, Then then) {
  const Status status = go(visits, use, then);
  // After a failure, what is under way still has windows and slots.
  while (!arriving_.empty()) {
    (void)end_read(std::move(arriving_.front()));
    arriving_.pop_front();
  }
  while (!leaving_.empty()) (void)end_oldest_write();
  return status;
}

Status StorePass::go(std::span<const Visit> visits, const Use& use, Then then) {
  for (size_t next = 0; next < visits.size() || !arriving_.empty();) {
    while (next < visits.size()) {
      std::optional<Lease> window = windows_.try_lease();
      if (!window) break;
      PENSTOCK_TRY(begin_read(visits[next++], std::move(*window)));
    }
    CHECK(!arriving_.empty(), "no window is free outside of a step");
    Arriving first = std::move(arriving_.front());
    arriving_.pop_front();
    const uint32_t tile = first.visit.tile;
    PENSTOCK_TRY_ASSIGN(window, end_read(std::move(first)));
    PENSTOCK_TRY(use(tile, window.data()));
    if (then == Then::forget) continue;
    PENSTOCK_TRY(begin_write(tile, std::move(window)));
    // Half of the windows for each way.
    while (leaving_.size() > arriving_.size()) PENSTOCK_TRY(end_oldest_write());
  }
  while (!leaving_.empty()) PENSTOCK_TRY(end_oldest_write());
  return Status();
}

Status StorePass::begin_read(const Visit& visit, Lease window) {
  Arriving& arriving = arriving_.emplace_back(Arriving{visit, {}, {}});
  if (visit.range.length_bytes == 0) {
    arriving.window = std::move(window);
    return Status();
  }
  arriving.reading = store_.begin_read(visit.tile, visit.range, visit.range.offset_bytes);
  if (!arriving.reading) {
    arriving_.pop_back();
    return Status(Code::kEnvironment, text("read of tile ", visit.tile, ": it is still being written"));
  }
  moved_.read_bytes += visit.range.length_bytes;
  arriving.transfer = io_.read(arriving.reading->extents, std::move(window), IoEngine::kWhenever);
  return Status();
}

Result<Lease> StorePass::end_read(Arriving arriving) {
  if (!arriving.transfer) return std::move(arriving.window);
  Result<Lease> arrived = std::move(*arriving.transfer).wait();
  Status compared;
  if (arrived.ok()) {
    compared = compare_checksums(store_.shape(), arriving.visit.tile, arriving.visit.range, arrived->data(),
                                 arriving.reading->checksums);
  }
  store_.end_read(arriving.reading->place);
  if (!compared.ok()) return compared;
  return arrived;
}

Status StorePass::begin_write(uint32_t tile, Lease window) {
  std::optional<aio::TileStore::Writing> writing;
  while (!writing) {
    PENSTOCK_TRY_ASSIGN(begun, store_.begin_write(tile, Update::final));
    writing = std::move(begun);
    if (!writing) io_.wait(std::chrono::milliseconds(100));
  }
  std::vector<uint64_t> checksums = checksums_of(store_.shape(), tile, window.data());
  moved_.written_bytes += store_.whole(tile).length_bytes;
  leaving_.push_back(
      {writing->place, std::move(checksums), io_.write(writing->extents, std::move(window), IoEngine::kWhenever)});
  return Status();
}

Status StorePass::end_oldest_write() {
  Leaving oldest = std::move(leaving_.front());
  leaving_.pop_front();
  const Result<Lease> written = std::move(oldest.transfer).wait();
  if (written.ok()) {
    store_.written(oldest.place, oldest.checksums);
  } else {
    store_.write_failed(oldest.place, written.status());
  }
  return written.status();
}

}  // namespace penstock::engine
