// A new store: the initial state of every tile, and the first root.
#include "aio/host_arena.h"
#include "cpu_optim/checksum.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/rank_side.h"
#include "runtime/engine/root_state.h"
#include "tiering/plan/plan_search.h"

namespace penstock::engine {

Status Engine::create(const EngineOptions& options, const InitialValues& initial,
                      aio::CreateOptions::Existing existing) {
  const PlanRequest& request = options.request;
  const Workload& workload = request.workload;
  PENSTOCK_TRY_ASSIGN(chosen, choose_plan(request));
  StoreShape shape = StoreShape::of(workload, chosen.plan.tiles);
  if (options.ranks != nullptr) {
    shape.rank = options.ranks->rank();
    shape.ranks = options.ranks->ranks();
  }
  PENSTOCK_TRY_ASSIGN(drives, options.drives());
  PENSTOCK_TRY_ASSIGN(arena, aio::HostArena::make(aio::kChunksUnderWay * aio::kChunkBytes));
  drives.io->register_memory(arena->bytes());

  aio::CreateOptions create;
  create.slots = chosen.slots;
  create.existing = existing;
  create.id = options.store_id;
  create.is_one_of_several = options.ranks != nullptr;
  create.state_capacity = state_capacity_of(workload);
  create.payload.config_hash = options.config_hash;
  create.payload.trainer_state = options.initial_state;
  create.payload.step = options.initial_step;
  if (options.initial_step > 0) {
    EngineState state = engine_state(workload);
    state.updates = options.initial_step;
    create.payload.engine_state = encode(state);
  }
  create.checksum = cpu_optim::checksum_function();
  create.memory = arena->bytes();
  create.rates = request.machine.step_rates(drives.folders.size());
  InitialTiles tiles(workload, shape, initial);
  auto fill = [&](TileId tile, uint32_t plane, uint64_t first_byte, std::span<std::byte> bytes) {
    return tiles.fill(tile, plane, first_byte, bytes);
  };
  return aio::TileStore::create(*drives.io, drives.folders, shape, create, fill);
}

}  // namespace penstock::engine
