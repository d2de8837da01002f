#include "tests/support/store_trainer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tiering/check.h"

namespace penstock::aio {
namespace {

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 29)) * 0xbf58476d1ce4e5b9;
  return value ^ (value >> 32);
}

uint64_t slot_bytes_max(const TileStore& store) {
  uint64_t most = 0;
  for (TileId tile = 0; tile < store.shape().tiles.size(); ++tile)
    most = std::max(most, store.whole(tile).length_bytes);
  return most;
}

}  // namespace

void TrainingNumbers::draw() {
  ++step;
  random = mix(random + step);
}

RootPayload TrainingNumbers::payload() const {
  constexpr uint64_t kCounts = 400, kWords = 2000;  // 3200 B and 16000 B: five or six pages
  std::vector<uint64_t> counts(kCounts, step), words(kWords);
  for (uint64_t i = 0; i < kWords; ++i) words[i] = mix((i < kWords / 2 ? random : step / 4) + i);
  words.front() = random;
  const auto text_of = [](const std::vector<uint64_t>& from) {
    return std::string(reinterpret_cast<const char*>(from.data()), from.size() * sizeof(uint64_t));
  };
  return {.step = step, .config_hash = "training", .engine_state = text_of(counts), .trainer_state = text_of(words)};
}

std::optional<TrainingNumbers> TrainingNumbers::of(const RootPayload& payload) {
  TrainingNumbers numbers{payload.step, 0};
  if (payload.trainer_state.size() < sizeof(numbers.random)) return std::nullopt;
  std::memcpy(&numbers.random, payload.trainer_state.data(), sizeof(numbers.random));
  if (numbers.payload() != payload) return std::nullopt;
  return numbers;
}

void update_tile(const StoreShape& shape, TileId tile, std::span<std::byte> bytes, const TrainingNumbers& numbers,
                 bool struck) {
  const uint64_t salt = mix(numbers.random ^ (numbers.step << 32) ^ tile) + struck;
  // What fills a plane up to a whole sector belongs to nobody.
  for (const TileLayout::Place& place : shape.layout(tile).places) {
    for (uint64_t at = place.offset_bytes; at + sizeof(uint16_t) <= place.offset_bytes + place.length_bytes;
         at += sizeof(uint16_t)) {
      uint16_t word;
      std::memcpy(&word, &bytes[at], sizeof(word));
      word = static_cast<uint16_t>(word * 3 + ((salt + at) * 0x9e3779b97f4a7c15 >> 32));
      std::memcpy(&bytes[at], &word, sizeof(word));
    }
  }
}

Status initial_fill(TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = static_cast<std::byte>(mix((uint64_t{tile} << 40) + (uint64_t{plane} << 32) + first_byte + at));
  }
  return Status();
}

PlainTraining::PlainTraining(const StoreShape& shape) : shape_(&shape) {
  for (TileId tile = 0; tile < shape.tiles.size(); ++tile) {
    TileLayout layout = shape.layout(tile);
    tiles_.emplace_back(layout.size_bytes);
    for (uint32_t plane = 0; plane < layout.places.size(); ++plane) {
      const TileLayout::Place& place = layout.places[plane];
      Status filled =
          initial_fill(tile, plane, 0, std::span(tiles_.back()).subspan(place.offset_bytes, place.length_bytes));
      CHECK(filled.ok());
    }
  }
}

void PlainTraining::run(uint64_t steps) {
  for (; steps > 0; --steps) {
    numbers_.draw();
    for (TileId tile = 0; tile < tiles_.size(); ++tile) {
      if (shape_->kind(tile).updated) update_tile(*shape_, tile, tiles_[tile], numbers_, false);
    }
  }
}

StoreTrainer::StoreTrainer(IoEngine& engine, TileStore& store, uint32_t leases)
    : engine_(engine),
      store_(store),
      memory_(Buffer::on_heap(slot_bytes_max(store) * leases)),
      pool_(Tier::host, memory_.bytes(), slot_bytes_max(store)),
      acknowledged_(store.payload().step) {
  const std::optional<TrainingNumbers> numbers = TrainingNumbers::of(store.payload());
  if (numbers) {
    numbers_ = *numbers;
  } else {
    fail(Status(Code::kCorrupt, "the state beside the tiles is not one that was written"));
  }
}

StoreTrainer::~StoreTrainer() {
  updated_.clear();
  held_.reset();
  while (in_flight_ > 0 || store_.committing()) {
    if (engine_.wait(std::chrono::seconds(1)) == 0) break;
  }
}

// Some steps strike: their speculative updates are discarded and done again. Of the tiles of every step some are
// updated speculatively and some after the verdict. With slots to spare, some commits begin only when the next step has
// speculated already.
Status StoreTrainer::step(uint64_t every) {
  numbers_.draw();
  const bool strikes = mix(numbers_.step) % 3 == 0;
  const bool may_speculate = store_.layout().slots() > (every > 1 ? 2 : 1);
  std::vector<Work> before, after;
  for (TileId tile = 0; tile < store_.shape().tiles.size(); ++tile) {
    if (!store_.shape().kind(tile).updated) continue;
    const bool speculative = may_speculate && mix(numbers_.step * 1000 + tile) % 4 != 0;
    if (speculative) before.push_back({tile, strikes ? Pass::struck : Pass::speculative});
    if (!speculative || strikes) after.push_back({tile, Pass::final});
  }
  PENSTOCK_TRY(run(before));
  holds_back_ = false;
  PENSTOCK_TRY(wait_until([&] { return !held_; }));
  if (strikes) {
    store_.discard();
  } else {
    store_.confirm();
  }
  PENSTOCK_TRY(run(after));
  if (numbers_.step % every == 0) {
    held_ = numbers_.payload();
    holds_back_ = store_.layout().slots() > 2 && mix(numbers_.step) % 2 == 0;
    try_commit();
  }
  return status_;
}

void StoreTrainer::try_commit() {
  if (!held_ || holds_back_ || store_.committing()) return;
  const uint64_t step = held_->step;
  store_.commit(*std::exchange(held_, std::nullopt), [this, step](const Status& outcome) {
    if (!outcome.ok()) return fail(outcome);
    acknowledged_ = step;
    if (on_acknowledged_) on_acknowledged_(step);
  });
}

Status StoreTrainer::settle() {
  holds_back_ = false;
  return wait_until([&] { return !held_ && !store_.committing(); });
}

// Begins every piece of work; the writes may still be under way when it returns, as at the end of a real step.
Status StoreTrainer::run(std::vector<Work> work) {
  std::reverse(work.begin(), work.end());
  return wait_until([&] {
    std::erase_if(updated_, [&](auto& ready) { return start_write(ready.first, ready.second); });
    while (!work.empty() && start_read(work.back())) work.pop_back();
    return work.empty() && updated_.empty() && reads_in_flight_ == 0;
  });
}

bool StoreTrainer::start_read(const Work& work) {
  if (pool_.pieces_free() == 0) return false;
  std::optional<TileStore::Reading> reading = store_.begin_read(work.tile);
  if (!reading) return false;
  std::vector<uint64_t> expected(reading->checksums.begin(), reading->checksums.end());
  ++in_flight_;
  ++reads_in_flight_;
  engine_.read(reading->extents, *pool_.try_lease(), IoEngine::kWhenever)
      .then([this, work, place = reading->place, expected](Result<Lease> read) {
        --in_flight_;
        --reads_in_flight_;
        store_.end_read(place);
        if (!read.ok()) return fail(read.status());
        std::span<std::byte> bytes = read->bytes().first(store_.whole(work.tile).length_bytes);
        if (checksums(work.tile, bytes) != expected) {
          return fail(Status(Code::kCorrupt, text("tile ", work.tile, ": a block is not what was written")));
        }
        update_tile(store_.shape(), work.tile, bytes, numbers_, work.pass == Pass::struck);
        updated_.emplace_back(work, *std::move(read));
      });
  return true;
}

bool StoreTrainer::start_write(const Work& work, Lease& lease) {
  NewVersion version = work.pass == Pass::final ? NewVersion::final : NewVersion::unconfirmed;
  auto begun = store_.begin_write(work.tile, version);
  if (!begun.ok() || !*begun) return false;  // no slot is free yet, or the store has failed
  const std::optional<TileStore::Writing>& writing = *begun;
  std::vector<uint64_t> sums = checksums(work.tile, lease.bytes().first(store_.whole(work.tile).length_bytes));
  ++in_flight_;
  tile_bytes_written_ += store_.whole(work.tile).length_bytes;
  engine_.write(writing->extents, std::move(lease), IoEngine::kWhenever)
      .then([this, place = writing->place, sums](Result<Lease> written) {
        --in_flight_;
        if (written.ok()) return store_.written(place, sums);
        store_.write_failed(place, written.status());
        fail(written.status());
      });
  return true;
}

template <typename Condition>
Status StoreTrainer::wait_until(Condition condition) {
  for (try_commit(); status_.ok() && store_.status().ok() && !condition(); try_commit()) {
    engine_.wait(std::chrono::seconds(1));
  }
  return status_.ok() ? store_.status() : status_;
}

void StoreTrainer::fail(const Status& why) {
  if (status_.ok()) status_ = why;
}

std::vector<uint64_t> StoreTrainer::checksums(TileId tile, std::span<const std::byte> bytes) const {
  TileLayout layout = store_.shape().layout(tile);
  std::vector<uint64_t> sums;
  for (uint64_t number = 0; number < checksum_count(store_.shape(), tile); ++number) {
    TileBlock block = block_of(layout, store_.shape().tiles[tile].elements, number);
    sums.push_back(checksum(bytes.subspan(block.offset_bytes, block.length_bytes), checksum_seed(tile, number)));
  }
  return sums;
}

Result<std::vector<std::vector<std::byte>>> StoreTrainer::read_all() {
  std::vector<std::vector<std::byte>> tiles;
  for (TileId tile = 0; tile < store_.shape().tiles.size(); ++tile) {
    std::optional<TileStore::Reading> reading;
    PENSTOCK_TRY(wait_until([&] { return (reading = store_.begin_read(tile)).has_value(); }));
    PENSTOCK_TRY(wait_until([&] { return pool_.pieces_free() > 0; }));
    std::vector<uint64_t> expected(reading->checksums.begin(), reading->checksums.end());
    Result<Lease> read = engine_.read(reading->extents, *pool_.try_lease(), IoEngine::kWhenever).wait();
    store_.end_read(reading->place);
    if (!read.ok()) return read.status();
    std::span<std::byte> bytes = read->bytes().first(store_.whole(tile).length_bytes);
    if (checksums(tile, bytes) != expected) {
      return Status(Code::kCorrupt, text("tile ", tile, ": a block is not what was written"));
    }
    tiles.emplace_back(bytes.size());
    for (const TileLayout::Place& place : store_.shape().layout(tile).places) {
      std::memcpy(&tiles.back()[place.offset_bytes], &bytes[place.offset_bytes], place.length_bytes);
    }
  }
  return tiles;
}

}  // namespace penstock::aio
