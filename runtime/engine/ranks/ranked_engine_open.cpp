// How ranks make or open their stores together, and agree on the plan.
#include "runtime/engine/ranks/ranked_engine.h"

#include <algorithm>

#include "aio/store/store_presence.h"
#include "aio/store/tile_store.h"
#include "runtime/engine/ranks/rank_agreement.h"
#include "runtime/engine/ranks/set_making.h"
#include "runtime/engine/ranks/stored_model.h"
#include "tiering/plan/plan_search.h"
#include "tiering/plan/visits.h"
#include "tiering/store/store_hash.h"

namespace penstock::engine {
namespace {

constexpr int kOpenings = 3;  // of a store, to find the step that all have
constexpr uint64_t kPassesSeed = 0x5353'4150;

Status no_common_step(const Ranks& ranks, const std::vector<std::array<uint64_t, 1>>& steps) {
  std::string words;
  for (uint32_t rank = 0; rank < ranks.ranks(); ++rank) {
    words += text(rank == 0 ? "" : ", ", ranks.name_of(rank), " at step ", steps[rank][0]);
  }
  return Status(Code::kCorrupt, text("ranks: their stores have no step in common: ", words),
                "go back to a step that is kept, which `penstock checkpoint ls` lists; else put back a copy of all "
                "ranks' stores, or make new ones with --force");
}

// Once all ranks have made theirs: a rank's store that was killed before tells that none has been trained.
Status complete_store(const EngineOptions& options, uint32_t rank) {
  PENSTOCK_TRY_ASSIGN(drives, options.drives());
  return aio::TileStore::complete(*drives.io, drives.folders, rank, *options.store_id);
}

// Of one that could not be made whole, so that the next attempt makes it anew.
void remove_store(const EngineOptions& options, uint32_t rank) {
  const Result<Drives> drives = options.drives();
  if (drives.ok()) (void)aio::remove_store(*drives->io, drives->folders, rank, *options.store_id);
}

}  // namespace

RankedEngine::RankedEngine(const RankedOptions& options, Ranks& ranks)
    : options_(options),
      ranks_(ranks),
      map_(options.engine.request.workload.units, ranks.ranks(), options.ranks_of_group(ranks.ranks())),
      shards_(workload_of(options.engine.request.workload, map_, ranks.rank())),
      taken_(memory_of(options, ranks.ranks())),
      commits_(ranks) {
  lay_out();
}

// What is still to be committed waits for all ranks. Where the others have not come here but go on training, nobody may
// wait for the other: their operation is another one, and ends all.
RankedEngine::~RankedEngine() {
  ranks_.came();
  ranks_.step_ended();
  if (in_step_) ranks_.fail(Status(Code::kInterrupted, "its engine was closed inside the step"));
  if (lane_) lane_->stop();
  if (is_open_) (void)agree_on(ranks_, Status());
}

Result<EngineOptions> RankedEngine::options_here() {
  if (const uint64_t needed = taken_.shared_on_device(); needed > 0) {
    const Collective* devices = ranks_.among_devices();
    const uint64_t there = devices != nullptr ? devices->memory().size() : 0;
    if (there < needed) {
      return Status(
          Code::kUsage,
          text("ranks: ", bytes_text(needed), " of memory shared among devices needed, ", bytes_text(there), " taken"),
          "meet with RanksOptions::device, or gather weights in host memory");
    }
  }
  if (ranks_.passes().memory().size() < taken_.shared_bytes()) {
    return Status(Code::kUsage, text("ranks: ", bytes_text(taken_.shared_bytes()), " of shared memory needed, ",
                                     bytes_text(ranks_.passes().memory().size()), " taken"));
  }
  EngineOptions here = options_.engine;
  PENSTOCK_TRY_ASSIGN(request, request_of(options_, {.rank = ranks_.rank(), .ranks = ranks_.ranks(), .meeting = {}}));
  here.request = std::move(request);
  here.ranks = this;
  return here;
}

// What decides which verbs follow one another, and when roots are written, rank 0 chooses for all.
Status RankedEngine::agree_on_plan() {
  PENSTOCK_TRY_ASSIGN(here, options_here());
  Status mine;
  std::array<uint64_t, 3> chosen{};
  if (ranks_.rank() == 0) {
    const Result<ChosenPlan> plan = choose_plan(here.request);
    mine = plan.status();
    if (plan.ok()) {
      const Durability durability = plan->plan.durability;
      chosen = {plan->plan.micro_batch_group, static_cast<uint64_t>(durability.kind), durability.steps};
    }
  }
  PENSTOCK_TRY(agree_on(ranks_, mine));
  std::vector<std::array<uint64_t, 3>> all(ranks_.ranks());
  PENSTOCK_TRY(exchange_numbers(ranks_, chosen, all));
  options_.engine.request.choices.micro_batch_group = static_cast<uint32_t>(all[0][0]);
  options_.engine.request.durability = {static_cast<Durability::Kind>(all[0][1]), static_cast<uint32_t>(all[0][2])};
  return Status();
}

Status RankedEngine::create(const RankedOptions& options, Ranks& ranks, const InitialValues& initial,
                            aio::CreateOptions::Existing existing) {
  PENSTOCK_TRY(check(options, ranks.ranks()));
  RankedEngine engine(options, ranks);
  PENSTOCK_TRY(engine.agree_on_plan());
  std::vector<StoreId> ids(ranks.ranks());
  PENSTOCK_TRY(exchange_numbers(ranks, aio::draw_store_id(), ids));
  PENSTOCK_TRY_ASSIGN(here, engine.options_here());
  here.store_id = ids[0];
  const InitialValues of_shard = values_of_rank(initial, engine.shards_, engine.map_, ranks.rank());
  const Status mine = Engine::create(here, of_shard, existing);
  Status all = agree_on(ranks, mine);
  if (all.ok()) all = agree_on(ranks, complete_store(here, ranks.rank()));
  if (mine.ok() && !all.ok()) remove_store(here, ranks.rank());  // without the others' it is none
  return all;
}

Result<std::unique_ptr<RankedEngine>> RankedEngine::open(const RankedOptions& options, Ranks& ranks) {
  PENSTOCK_TRY(check(options, ranks.ranks()));
  auto engine = std::unique_ptr<RankedEngine>(new RankedEngine(options, ranks));
  PENSTOCK_TRY(engine->agree_on_plan());
  PENSTOCK_TRY(engine->open_at_common_step());
  std::vector<uint64_t> passes;
  for (const Compute& compute : engine->plan().computes) {
    passes.insert(passes.end(), {static_cast<uint64_t>(compute.direction), compute.use, compute.micro_batch});
  }
  const uint64_t order[] = {passes.size(), store_hash(std::as_bytes(std::span(passes)), kPassesSeed)};
  PENSTOCK_TRY(expect_same(ranks, "the order of passes", order));
  engine->visits_ = visits_of(engine->plan());
  engine->ahead_ = visits_ahead(engine->plan());
  PENSTOCK_TRY(all_of_all(ranks, engine->ahead_));
  auto workers = cpu_optim::UpdateWorkers::make({.threads = options.engine.update_threads, .cpus = {}});
  PENSTOCK_TRY(agree_on(ranks, workers.status()));
  engine->workers_ = std::move(*workers);
  PENSTOCK_TRY(agree_on(ranks, engine->open_device()));
  auto lane = CollectiveLane::make();
  PENSTOCK_TRY(agree_on(ranks, lane.status()));
  engine->lane_ = std::move(*lane);
  engine->open_sums();
  if (engine->here_->predicted_step_s() > 0) {
    engine->prediction_.reset(penstock::predicted_step_s(engine->forecast(), engine->here_->request().machine));
  }
  double longest_pass_s = 0;
  for (const Use& use : engine->model().uses) longest_pass_s = std::max(longest_pass_s, use.forward_s + use.backward_s);
  ranks.expect_pass(longest_pass_s);
  engine->is_open_ = true;
  return engine;
}

Status RankedEngine::open_device() {
  const std::span<std::byte> all = ranks_.passes().memory();
  const uint64_t weights = taken_.on_device.weights, gradient = taken_.on_device.gradient;
  if (taken_.on_device.reduces()) {
    // As rank 0 has chosen the plan's group of micro-batches, for all.
    const uint64_t sums = lay_out_sums(model(), plan().micro_batch_group, GivenIn::elsewhere).bytes;
    PENSTOCK_TRY_ASSIGN(device, RankDevice::open(options_.engine.device, sums, all));
    gradients_device_ = std::move(device);
  }
  if (weights > 0) {
    const MakeDevice& make = options_.engine.device;
    auto device = taken_.on_device.gathers
                      ? RankDevice::open_over(make, ranks_.among_devices()->memory().first(weights))
                      : RankDevice::open(make, weights, all.subspan(gathered_begin_));
    PENSTOCK_TRY(device.status());
    weights_device_ = std::move(*device);
  }
  if (gradient > 0) {
    PENSTOCK_TRY_ASSIGN(device, RankDevice::open(options_.engine.device, gradient, all.first(gathered_begin_)));
    gradients_device_ = std::move(device);
  }
  return Status();
}

// In the memory that is given to it, of this rank's trainer alone.
void RankedEngine::open_sums() {
  SumLayout layout = lay_out_sums(model(), plan().micro_batch_group, GivenIn::elsewhere);
  if (taken_.on_device.reduces()) {
    device_sums_ = std::make_unique<RankDeviceSums>(model(), std::move(layout), *gradients_device_);
    intake_ = std::make_unique<GradientIntake>(model(), *device_sums_, *workers_);
    return;
  }
  sums_ = Buffer::on_heap(layout.bytes);
  intake_ = std::make_unique<GradientIntake>(model(), layout, sums_.bytes(), *workers_);
}

// A copy of a store that is put back beside others', which have gone on from there, may have come to the same step.
Status RankedEngine::expect_one_course(uint64_t step) {
  std::vector<std::array<uint64_t, 1>> courses(ranks_.ranks());
  PENSTOCK_TRY(exchange_numbers(ranks_, std::array<uint64_t, 1>{here_->course()}, courses));
  for (uint32_t rank = 1; rank < ranks_.ranks(); ++rank) {
    if (courses[rank] != courses[0]) return another_course(rank, step);
  }
  return Status();
}

// Ranks that were killed between two roots differ by a step. Those that are ahead go back: what the step before names
// has not been overwritten, since that waits for the second barrier.
Status RankedEngine::open_at_common_step() {
  PENSTOCK_TRY_ASSIGN(here, options_here());
  std::vector<std::array<uint64_t, 1>> steps(ranks_.ranks());
  for (int opening = 0; opening < kOpenings; ++opening) {
    Status mine;
    if (!here_) {
      Result<std::unique_ptr<Engine>> opened = Engine::open(here);
      mine = opened.status();
      if (opened.ok()) here_ = std::move(*opened);
    }
    const Status all = agree_on(ranks_, mine);
    if (!all.ok() && opening > 0) return no_common_step(ranks_, steps);
    PENSTOCK_TRY(all);
    PENSTOCK_TRY(expect_one_run(ranks_, here_->store_id()));
    PENSTOCK_TRY(exchange_numbers(ranks_, std::array<uint64_t, 1>{here_->steps_done()}, steps));
    const uint64_t common = std::min_element(steps.begin(), steps.end())->front();
    if (common == std::max_element(steps.begin(), steps.end())->front()) return expect_one_course(common);
    here.newest_step = common;
    if (here_->steps_done() > common) here_.reset();
  }
  return no_common_step(ranks_, steps);
}

}  // namespace penstock::engine
