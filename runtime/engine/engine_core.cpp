#include "runtime/engine/engine_core.h"

#include <algorithm>

#include "cpu_optim/checksum.h"
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
      options_.on_durable, options_.on_updated, options_.ranks});
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

LaneSeconds EngineCore::busy_s() const {
  LaneSeconds sum_s = busy_before_;
  for (size_t lane = 0; lane < kLanes; ++lane) sum_s[lane] += executor_->lane_times().busy_s()[lane];
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

}  // namespace penstock::engine
