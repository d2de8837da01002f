#include "runtime/engine/engine_core.h"

#include <algorithm>
#include <cstring>

#include "aio/direct_folder.h"
#include "cpu_optim/checksum.h"
#include "tiering/checksum.h"
#include "tiering/plan_search.h"

namespace penstock::engine {

MakeDrives direct_drives(std::vector<std::string> paths, aio::EngineChoice choice) {
  return [paths = std::move(paths), choice]() -> Result<Drives> {
    PENSTOCK_TRY_ASSIGN(made, aio::make_engine(choice));
    Drives drives;
    drives.io = std::move(made.engine);
    drives.description = made.reason;
    drives.folders = aio::direct_folders(paths);
    return Result<Drives>(std::move(drives));
  };
}

Result<std::unique_ptr<EngineCore>> EngineCore::open(const EngineOptions& options, Mailbox& mailbox) {
  auto core = std::unique_ptr<EngineCore>(new EngineCore(options));
  PENSTOCK_TRY_ASSIGN(drives, options.drives());
  core->drives_ = std::move(drives);
  PENSTOCK_TRY(core->open_store());
  PENSTOCK_TRY(core->make_plan());
  PENSTOCK_TRY_ASSIGN(memory, TileMemory::make(*core->plan_));
  core->memory_ = std::move(memory);
  core->drives_.io->register_memory(core->memory_->bytes());
  PENSTOCK_TRY_ASSIGN(
      spill, SpillFiles::make(core->drives_.folders, options.request.machine.step_rates(core->drives_.folders.size()),
                              *core->plan_));
  core->spill_ = std::move(spill);
  const cpu_optim::UpdateArenaOptions workers{.threads = options.update_threads, .cpus = {}};
  PENSTOCK_TRY_ASSIGN(arena, cpu_optim::UpdateArena::make(workers));
  core->workers_ = std::move(arena);
  PENSTOCK_TRY(core->load_resting(Resting::all));
  core->executor_ = std::make_unique<Executor>(
      Executor::Parts{*core->plan_, core->options_.request.workload.form, *core->memory_, *core->store_, *core->spill_,
                      *core->drives_.io, *core->workers_, mailbox, core->options_.on_durable});
  return core;
}

Status EngineCore::open_store() {
  aio::OpenOptions open;
  open.checksum = cpu_optim::checksum_function();
  PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*drives_.io, drives_.folders, open));
  store_ = std::move(store);
  if (!options_.config_hash.empty() && store_->payload().config_hash != options_.config_hash) {
    return Status(Code::kUsage,
                  text("store: written under configuration ", store_->payload().config_hash, ", this one is ",
                       options_.config_hash),
                  "resume with the configuration that the store was made with");
  }
  return Status();
}

Status EngineCore::make_plan() {
  // The tiles are the store's: only a new store could have others.
  uint64_t tile_elements = 0;
  for (const StoreShape::Tile& tile : store_->shape().tiles) tile_elements = std::max(tile_elements, tile.elements);
  PlanRequest request = options_.request;
  request.choices.tile_elements = round_up(tile_elements, kBlockElements);
  request.slots = store_->layout().slots();
  StoreShape expected = StoreShape::of(request.workload, TileMap(request.workload, *request.choices.tile_elements));
  if (std::string difference = expected.first_difference(store_->shape()); !difference.empty()) {
    return Status(Code::kUsage, text("store: holds another model: ", difference),
                  "'here' is the model, 'there' the store: give the model that it was made for");
  }
  PENSTOCK_TRY_ASSIGN(plan, penstock::make_plan(decide_durability(std::move(request))));
  plan_ = std::make_unique<Plan>(std::move(plan));
  return validate(*plan_);
}

std::string EngineCore::description() const {
  std::string lines;
  for (const BudgetLine& line : plan_->budget_lines) {
    lines += text("  ", name_of(line.tier), "  ", line.name, "  ", bytes_text(line.bytes), "\n");
  }
  for (const std::string& note : store_->open_report().notes) lines += text("  store   ", note, "\n");
  return text(lines, "  memory  ", memory_->description(), "\n  I/O     ", drives_.io->description(), "\n  tiles   ",
              plan_->tiles.size(), " of ", plan_->tiles.tile_elements(), " parameters, ", store_->layout().slots(),
              " slots each\n  durable ", text_of(plan_->durability),
              store_->layout().slots() == 1 ? ", but a crash loses the store: it has one slot a tile" : "",
              "\n  update  ", workers_->threads(), " threads, ", cpu_optim::name_of(cpu_optim::best_isa()), "\n");
}

Status EngineCore::load_resting(Resting which) {
  for (uint32_t tile = 0; tile < plan_->tiles.size(); ++tile) {
    const Placement& placement = plan_->placements[tile];
    if (placement.weight != Tier::host) continue;
    if (which == Resting::weights_of_others && placement.state == Tier::host) continue;
    std::optional<Lease> window = memory_->windows().try_lease();
    CHECK(window.has_value());
    aio::TileStore::Range range = store_->whole(tile);
    if (placement.state != Tier::host) range.length_bytes = plan_->tiles[tile].weight_bytes;
    PENSTOCK_TRY(read_tile(tile, range, Lease::over(Tier::host, window->bytes()), 0));
    scatter_resting(tile, window->data());
  }
  return Status();
}

void EngineCore::scatter_resting(uint32_t tile, const std::byte* slot) {
  const Tile& shape = plan_->tiles[tile];
  if (std::byte* weight = memory_->resting_weight(tile)) std::memcpy(weight, slot, shape.weight_bytes);
  if (std::byte* state = memory_->resting_state(tile)) std::memcpy(state, slot + shape.weight_bytes, shape.state_bytes);
}

Status EngineCore::gather_tile(uint32_t tile, std::byte* slot) {
  const Tile& shape = plan_->tiles[tile];
  if (memory_->resting_state(tile) == nullptr) {
    PENSTOCK_TRY(read_tile(tile, store_->whole(tile), Lease::over(Tier::host, {slot, shape.slot_bytes()}), 0));
  } else {
    std::memcpy(slot + shape.weight_bytes, memory_->resting_state(tile), shape.state_bytes);
  }
  if (const std::byte* weight = memory_->resting_weight(tile)) std::memcpy(slot, weight, shape.weight_bytes);
  return Status();
}

Status EngineCore::commit_resting(RootPayload payload) {
  for (uint32_t tile = 0; tile < plan_->tiles.size(); ++tile) {
    if (memory_->resting_state(tile) == nullptr) continue;
    std::optional<Lease> window = memory_->windows().try_lease();
    CHECK(window.has_value());
    PENSTOCK_TRY(gather_tile(tile, window->data()));
    PENSTOCK_TRY(write_tile(tile, Lease::over(Tier::host, window->bytes())));
  }
  return commit(std::move(payload));
}

Status EngineCore::visit_plane(const char* verb, uint32_t unit, Role role, uint64_t first, uint64_t length_bytes,
                               const VisitRun& visit) {
  for (uint32_t tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
    const Tile& shape = plan_->tiles[tile];
    TileLayout layout = store_->shape().layout(tile);
    const TileLayout::Place* place = layout.find(role);
    if (place == nullptr) return Status(Code::kUsage, text(verb, ": the state has no ", name_of(role)));
    const uint64_t size = bytes_of(place->plane.dtype);
    uint64_t from = std::max(first, shape.first_element);
    uint64_t to = std::min(first + length_bytes / size, shape.first_element + shape.elements);
    if (from >= to) continue;
    std::optional<Lease> window = memory_->windows().try_lease();
    CHECK(window.has_value());
    PENSTOCK_TRY(gather_tile(tile, window->data()));
    std::byte* run = window->data() + place->offset_bytes + (from - shape.first_element) * size;
    PENSTOCK_TRY(visit(tile, *window, {run, (to - from) * size}, (from - first) * size));
  }
  return Status();
}

Status EngineCore::read_plane(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) {
  return visit_plane("read", unit, role, first, values.size(),
                     [&](uint32_t, const Lease&, std::span<std::byte> run, uint64_t at_bytes) {
                       std::memcpy(values.data() + at_bytes, run.data(), run.size());
                       return Status();
                     });
}

Status EngineCore::write_plane(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values,
                               RootPayload payload) {
  Status written = visit_plane("write", unit, role, first, values.size(),
                               [&](uint32_t tile, const Lease& slot, std::span<std::byte> run, uint64_t at_bytes) {
                                 std::memcpy(run.data(), values.data() + at_bytes, run.size());
                                 PENSTOCK_TRY(write_tile(tile, Lease::over(Tier::host, slot.bytes())));
                                 scatter_resting(tile, slot.data());
                                 return Status();
                               });
  if (!written.ok()) return written;
  return commit(std::move(payload));
}

Status EngineCore::read_tile(uint32_t tile, aio::TileStore::Range range, Lease into, uint64_t lease_offset_bytes) {
  std::optional<aio::TileStore::Reading> reading = store_->begin_read(tile, range, lease_offset_bytes);
  if (!reading) return Status(Code::kEnvironment, text("read of tile ", tile, ": it is still being written"));
  const std::byte* bytes = into.data() + lease_offset_bytes;
  Result<Lease> arrived = drives_.io->read(reading->extents, std::move(into), IoEngine::kWhenever).wait();
  Status status = arrived.status();
  if (arrived.ok()) status = check_blocks(tile, range, bytes, reading->checksums);
  store_->end_read(reading->place);
  return status;
}

Status EngineCore::write_tile(uint32_t tile, Lease from) {
  std::optional<aio::TileStore::Writing> writing;
  while (!writing) {
    PENSTOCK_TRY_ASSIGN(begun, store_->begin_write(tile, Update::final));
    writing = std::move(begun);
    if (!writing) drives_.io->wait(std::chrono::milliseconds(100));
  }
  std::vector<uint64_t> checksums = checksums_of(tile, from.data());
  Result<Lease> written = drives_.io->write(writing->extents, std::move(from), IoEngine::kWhenever).wait();
  if (!written.ok()) {
    store_->write_failed(writing->place, written.status());
    return written.status();
  }
  store_->written(writing->place, checksums);
  return Status();
}

Status EngineCore::commit(RootPayload payload) {
  std::optional<Status> verdict;
  store_->commit(std::move(payload), [&](Status status) { verdict = status; });
  while (!verdict) drives_.io->wait(std::chrono::milliseconds(100));
  if (verdict->ok() && options_.on_durable) options_.on_durable(store_->payload().step);
  return *verdict;
}

Status EngineCore::check_blocks(uint32_t tile, aio::TileStore::Range range, const std::byte* bytes,
                                std::span<const uint64_t> expected) const {
  const StoreShape& shape = store_->shape();
  TileLayout layout = shape.layout(tile);
  for (uint64_t number = 0; number < expected.size(); ++number) {
    TileBlock block = block_of(layout, shape.tiles[tile].elements, number);
    if (block.offset_bytes < range.offset_bytes ||
        block.offset_bytes + block.length_bytes > range.offset_bytes + range.length_bytes) {
      continue;
    }
    std::span<const std::byte> run(bytes + (block.offset_bytes - range.offset_bytes), block.length_bytes);
    if (cpu_optim::checksum_function()(run, checksum_seed(tile, number)) == expected[number]) continue;
    return Status(Code::kCorrupt,
                  text("read: ", describe_block(shape, tile, block), ": ", block.length_bytes,
                       " B do not have the checksum they were written with"),
                  "run `penstock checkpoint scrub` on the store");
  }
  return Status();
}

std::vector<uint64_t> EngineCore::checksums_of(uint32_t tile, const std::byte* bytes) const {
  const StoreShape& shape = store_->shape();
  TileLayout layout = shape.layout(tile);
  std::vector<uint64_t> sums(checksum_count(shape, tile));
  for (uint64_t number = 0; number < sums.size(); ++number) {
    TileBlock block = block_of(layout, shape.tiles[tile].elements, number);
    sums[number] =
        cpu_optim::checksum_function()({bytes + block.offset_bytes, block.length_bytes}, checksum_seed(tile, number));
  }
  return sums;
}

}  // namespace penstock::engine
