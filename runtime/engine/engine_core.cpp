#include "runtime/engine/engine_core.h"

#include <algorithm>
#include <cstring>

#include "cpu_optim/checksum.h"
#include "runtime/engine/coded_weights.h"
#include "runtime/engine/rank_side.h"
#include "tiering/plan/plan_search.h"

namespace penstock::engine {
namespace {

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 2) {
    end = text.find(", ", begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

// What `all` says and `of` does not, part by part.
std::string parts_missing(const std::string& of, const std::string& all) {
  const std::vector<std::string> there = parts_of(of);
  std::string missing;
  for (const std::string& part : parts_of(all)) {
    if (std::ranges::find(there, part) == there.end()) missing += (missing.empty() ? "" : ", ") + part;
  }
  return missing;
}

std::string difference(const std::string& written_under, const std::string& given) {
  const std::string was = parts_missing(given, written_under), is = parts_missing(written_under, given);
  if (was.empty()) return text("written without ", is);
  return text("written with ", was, is.empty() ? ", which this run is without" : ", this run has " + is);
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::open(const EngineOptions& options, Mailbox& mailbox) {
  auto core = std::unique_ptr<EngineCore>(new EngineCore(options, mailbox));
  PENSTOCK_TRY_ASSIGN(drives, options.drives());
  core->drives_ = std::move(drives);
  PENSTOCK_TRY(core->open_store());
  PENSTOCK_TRY(core->make_plan());
  PENSTOCK_TRY_ASSIGN(memory, HostMemory::make(*core->plan_, options.request.budgets.host_bytes));
  core->memory_ = std::move(memory);
  core->drives_.io->register_memory(core->memory_->bytes());
  if (core->plan_->on_device) {
    PENSTOCK_TRY_ASSIGN(device, DeviceMemory::open(options.device, *core->plan_, *core->memory_));
    core->device_ = std::move(device);
  }
  PENSTOCK_TRY(core->make_scratch_files(*core->plan_));
  const cpu_optim::UpdateWorkersOptions workers{.threads = options.update_threads, .cpus = {}};
  PENSTOCK_TRY_ASSIGN(made, cpu_optim::UpdateWorkers::make(workers));
  core->workers_ = std::move(made);
  if (RankSide* ranks = options.ranks) {
    core->store_->set_barriers(
        ranks->barriers([&mailbox, ranks] { mailbox.post([ranks] { ranks->poll(std::chrono::milliseconds(0)); }); }));
  }
  PENSTOCK_TRY_ASSIGN(io_descriptor, core->drives_.io->completion_fd());
  PENSTOCK_TRY(core->load_resting(Resting::all));
  core->outside_steps_ = DriveBytes();
  core->io_descriptor_ = io_descriptor;
  core->make_executor();
  return core;
}

Status EngineCore::make_scratch_files(const Plan& plan) {
  const std::vector<double> rates = options_.request.machine.step_rates(drives_.folders.size());
  const uint32_t rank = store_->shape().rank;
  PENSTOCK_TRY_ASSIGN(spill, SpillFiles::make(drives_.folders, rates, plan, rank));
  spill_ = std::move(spill);
  PENSTOCK_TRY_ASSIGN(activations, ActivationFiles::make(drives_.folders, rates, plan, rank));
  activations_ = std::move(activations);
  return Status();
}

void EngineCore::make_executor() {
  executor_ = std::make_unique<Executor>(Executor::Parts{
      *plan_, options_.request.workload, *memory_, device_.get(), *store_, *spill_, *activations_, *drives_.io,
      *workers_, mailbox_, io_descriptor_, options_.new_plan_rule.value_or(NewPlanRule{}).least_run_s,
      options_.on_durable, options_.on_updated, options_.has_other_ranks()});
}

void EngineCore::turn(std::chrono::milliseconds timeout) {
  const size_t ended = executor_->turn(timeout);
  if (ended > 0 && options_.has_other_ranks()) options_.ranks->progressed();
  if (auto work = std::exchange(between_turns_, {})) work();
}

ArenaRoom EngineCore::arena_room() const {
  // The device has registered the arena as it was.
  if (!device_) return {memory_->most_bytes(), 0};
  return {memory_->bytes().size(), device_->device().memory().size()};
}

Executor::LaneSeconds EngineCore::busy_s() const {
  Executor::LaneSeconds sum_s = busy_before_;
  for (size_t lane = 0; lane < kLanes; ++lane) sum_s[lane] += executor_->busy_s()[lane];
  return sum_s;
}

Status EngineCore::change_plan(ChosenPlan chosen) {
  const uint64_t before_bytes = memory_->bytes().size();
  PENSTOCK_TRY(memory_->grow(arena_bytes(chosen.plan.budget_lines)));
  const std::span<std::byte> grown = memory_->bytes().subspan(before_bytes);
  if (!grown.empty()) drives_.io->register_memory(grown);
  spill_.reset();  // its files have the names of those to come
  activations_.reset();
  if (const Status made = make_scratch_files(chosen.plan); !made.ok()) {
    executor_->fail(made.code() == Code::kDoesNotFit ? Status(Code::kEnvironment, made.message(), made.remedy())
                                                     : made);
    return executor_->status();
  }
  outside_steps_ = outside_steps_ + executor_->drive_bytes();
  busy_before_ = busy_s();
  executor_.reset();
  predicted_step_s_ = chosen.step_s();
  *plan_ = std::move(chosen.plan);  // in its place, where others look
  memory_->lay_out();
  if (device_) device_->lay_out();
  make_executor();
  if (const Status loaded = load_resting(Resting::all); !loaded.ok()) executor_->fail(loaded);
  return executor_->status();
}

Status EngineCore::open_store() {
  aio::OpenOptions open;
  open.checksum = cpu_optim::checksum_function();
  open.verifying = options_.verifying;
  open.newest_step = options_.newest_step;
  if (options_.has_other_ranks()) open.rank = options_.ranks->rank();
  PENSTOCK_TRY_ASSIGN(store, aio::TileStore::open(*drives_.io, drives_.folders, open));
  store_ = std::move(store);
  const std::string& written_under = store_->payload().config_hash;
  if (!options_.config_hash.empty() && !written_under.empty() && written_under != options_.config_hash) {
    return Status(Code::kUsage, text("store: ", difference(written_under, options_.config_hash)),
                  "give what the store was written with, or another store");
  }
  return Status();
}

Status EngineCore::make_plan() {
  uint64_t tile_elements = 0;
  for (const StoreShape::Tile& tile : store_->shape().tiles) tile_elements = std::max(tile_elements, tile.elements);
  const PlanRequest request =
      with_tiles_of(options_.request, round_up(tile_elements, kBlockElements), store_->layout().slots());
  StoreShape expected = StoreShape::of(request.workload, TileMap(request.workload, *request.choices.tile_elements));
  if (options_.has_other_ranks()) {
    expected.rank = options_.ranks->rank();
    expected.ranks = options_.ranks->ranks();
  }
  if (std::string difference = expected.first_difference(store_->shape()); !difference.empty()) {
    return Status(Code::kUsage, text("store: holds another model: ", difference),
                  "use the model that the store was made for, or another store");
  }
  PENSTOCK_TRY_ASSIGN(chosen, choose_plan(request));
  predicted_step_s_ = chosen.step_s();
  plan_ = std::make_unique<Plan>(std::move(chosen.plan));
  PENSTOCK_TRY(refuse_moves(*plan_, options_.device != nullptr));
  if (options_.on_updated) PENSTOCK_TRY(refuse_untold_updates(*plan_));
  return validate(*plan_);
}

std::string EngineCore::description() const {
  std::string lines;
  for (const BudgetLine& line : plan_->budget_lines) {
    lines += text("  ", name_of(line.tier), "  ", line.name, "  ", bytes_text(line.bytes), "\n");
  }
  for (const std::string& note : store_->open_report().notes) lines += text("  store   ", note, "\n");
  return text(lines, "  memory  ", memory_->description(), device_ ? "\n  device  " + device_->description() : "",
              "\n  I/O     ", drives_.io->description(), "\n  tiles   ", plan_->tiles.size(), " of ",
              plan_->tiles.tile_elements(), " parameters, ", store_->layout().slots(), " slots each\n  durable ",
              text_of(plan_->durability),
              store_->layout().slots() == 1 ? ", but a crash loses the store: it has one slot a tile" : "",
              "\n  update  ", workers_->threads(), " threads, ", cpu_optim::name_of(cpu_optim::best_isa()), "\n");
}

Status EngineCore::load_resting(Resting which) {
  std::vector<StoreSweep::Visit> visits;
  for (TileId tile = 0; tile < plan_->tiles.size(); ++tile) {
    const Placement& placement = plan_->placements[tile];
    if (placement.weight_on_drives()) continue;
    const bool may_have_changed = placement.weight_in_host() && !placement.state_in_host();
    if (which == Resting::weights_without_state && !may_have_changed) continue;
    aio::TileStore::Range range = store_->whole(tile);
    if (!placement.state_in_memory()) range.length_bytes = plan_->tiles[tile].weight_bytes;
    visits.push_back({tile, range});
  }
  return sweep(visits, StoreSweep::Then::forget,
               [this](TileId tile, std::byte* bytes) { return scatter_resting(tile, bytes); });
}

Status EngineCore::commit_resting(RootPayload payload) {
  std::vector<StoreSweep::Visit> visits;
  for (TileId tile = 0; tile < plan_->tiles.size(); ++tile) {
    if (plan_->placements[tile].state_in_memory()) visits.push_back({tile, {}});
  }
  PENSTOCK_TRY(sweep(visits, StoreSweep::Then::write,
                     [this](TileId tile, std::byte* bytes) { return gather_resting(tile, bytes); }));
  return commit(std::move(payload));
}

Status EngineCore::scatter_resting(TileId tile, std::byte* bytes) {
  const Tile& shape = plan_->tiles[tile];
  if (plan_->placements[tile].weight_on_device())
    return device_->carry(tile, DeviceMemory::Way::in, whole(tile, bytes));
  if (memory_->holds_weight(tile)) std::memcpy(memory_->lend_weight(tile).data(), bytes, shape.weight_bytes);
  if (memory_->holds_state(tile)) {
    std::memcpy(memory_->lend_state(tile).data(), bytes + shape.weight_bytes, shape.state_bytes);
  }
  return Status();
}

Status EngineCore::gather_resting(TileId tile, std::byte* bytes) const {
  const Tile& shape = plan_->tiles[tile];
  if (plan_->placements[tile].weight_on_device())
    return device_->carry(tile, DeviceMemory::Way::out, whole(tile, bytes));
  if (memory_->holds_weight(tile)) std::memcpy(bytes, memory_->share_weight(tile).data(), shape.weight_bytes);
  if (memory_->holds_state(tile)) {
    std::memcpy(bytes + shape.weight_bytes, memory_->share_state(tile).data(), shape.state_bytes);
  }
  return Status();
}

Result<std::vector<EngineCore::PlaneRun>> EngineCore::runs_of(const char* verb, uint32_t unit, Role role,
                                                              uint64_t first, uint64_t length_bytes) const {
  std::vector<PlaneRun> runs;
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
    const Tile& shape = plan_->tiles[tile];
    const TileLayout layout = store_->shape().layout(tile);
    const TileLayout::Place* place = layout.find(role);
    if (place == nullptr) return Status(Code::kUsage, text(verb, ": the state has no ", name_of(role)));
    const uint64_t size = bytes_of(place->plane.dtype);
    const uint64_t begin = place->plane.values(shape.first_element);  // tiles begin with whole blocks
    const uint64_t from = std::max(first, begin);
    const uint64_t to = std::min(first + length_bytes / size, begin + place->plane.values(shape.elements));
    if (from >= to) continue;
    const bool is_weight = place->offset_bytes < shape.weight_bytes;
    runs.push_back({.tile = tile,
                    .plane = {place->offset_bytes, round_up(place->length_bytes, kAlignmentBytes)},
                    .tile_offset_bytes = place->offset_bytes + (from - begin) * size,
                    .values_offset_bytes = (from - first) * size,
                    .length_bytes = (to - from) * size,
                    .rests_in_memory = !plan_->placements[tile].weight_on_drives() &&
                                       (is_weight || plan_->placements[tile].state_in_memory())});
  }
  return runs;
}

Status EngineCore::read_plane(uint32_t unit, Role role, uint64_t first, std::span<std::byte> values) {
  if (role == Role::weight && options_.request.workload.units[unit].code) return read_dequantised(unit, first, values);
  PENSTOCK_TRY_ASSIGN(runs, runs_of("read", unit, role, first, values.size()));
  std::vector<StoreSweep::Visit> visits;
  for (const PlaneRun& run : runs)
    visits.push_back({run.tile, run.rests_in_memory ? aio::TileStore::Range{} : run.plane});
  auto run = runs.begin();  // of the tile that is visited
  return sweep(visits, StoreSweep::Then::forget, [&](TileId tile, std::byte* bytes) {
    if (run->rests_in_memory) PENSTOCK_TRY(gather_resting(tile, bytes));
    std::memcpy(values.data() + run->values_offset_bytes, bytes + run->tile_offset_bytes, run->length_bytes);
    ++run;
    return Status();
  });
}

Status EngineCore::read_dequantised(uint32_t unit, uint64_t first, std::span<std::byte> values) {
  const CodedUnit coded(options_.request.workload, plan_->tiles, unit);
  const uint64_t end = first + values.size() / coded.weight_size();
  std::vector<StoreSweep::Visit> visits;
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
    const Tile& shape = plan_->tiles[tile];
    if (shape.first_element >= end || shape.first_element + shape.elements <= first) continue;
    visits.push_back({tile, memory_->holds_weight(tile) ? aio::TileStore::Range{} : store_->whole(tile)});
  }
  return sweep(visits, StoreSweep::Then::forget, [&](TileId tile, std::byte* bytes) {
    PENSTOCK_TRY(gather_resting(tile, bytes));
    const uint64_t from = std::max(first, plan_->tiles[tile].first_element);
    coded.dequantise(coded.codes_of(tile, bytes), from, end, values.data() + (from - first) * coded.weight_size());
    return Status();
  });
}

Status EngineCore::write_plane(uint32_t unit, Role role, uint64_t first, std::span<const std::byte> values) {
  PENSTOCK_TRY_ASSIGN(runs, runs_of("write", unit, role, first, values.size()));
  std::vector<StoreSweep::Visit> visits;
  for (const PlaneRun& run : runs) {
    const bool is_here = plan_->placements[run.tile].state_in_memory();
    visits.push_back({run.tile, is_here ? aio::TileStore::Range{} : store_->whole(run.tile)});
  }
  auto run = runs.begin();
  return sweep(visits, StoreSweep::Then::write, [&](TileId tile, std::byte* bytes) {
    PENSTOCK_TRY(gather_resting(tile, bytes));
    std::memcpy(bytes + run->tile_offset_bytes, values.data() + run->values_offset_bytes, run->length_bytes);
    PENSTOCK_TRY(scatter_resting(tile, bytes));
    ++run;
    return Status();
  });
}

void EngineCore::begin_forward(ForwardWeights::Room room) {
  ForwardWeights::Parts parts{
      room, options_.request.workload, *plan_, *memory_, device(), *store_, *drives_.io, *workers_, mailbox_};
  if (room == ForwardWeights::Room::own) {
    parts.is_current = [this](uint32_t unit) { return executor_->has_current_weights(unit); };
  }
  forward_.emplace(std::move(parts));
}

void EngineCore::end_forward() {
  outside_steps_ = outside_steps_ + forward_->drive_bytes();
  forward_.reset();
}

Status EngineCore::sweep(std::span<const StoreSweep::Visit> visits, StoreSweep::Then then,
                         const StoreSweep::OnTile& on_tile) {
  StoreSweep sweep(*drives_.io, *store_, memory_->windows());
  const Status status = sweep.run(visits, on_tile, then);
  outside_steps_ = outside_steps_ + sweep.drive_bytes();
  return status;
}

Status EngineCore::commit(RootPayload payload) {
  std::optional<Status> verdict;
  store_->commit(std::move(payload), [&](Status status) { verdict = status; });
  while (!verdict) {
    const size_t ended = drives_.io->wait(std::chrono::milliseconds(options_.has_other_ranks() ? 1 : 100));
    if (ended == 0 && options_.has_other_ranks()) options_.ranks->poll(std::chrono::milliseconds(1));
  }
  if (verdict->ok() && options_.on_durable) options_.on_durable(store_->payload().step);
  return *verdict;
}

}  // namespace penstock::engine
