#include "tiering/plan/plan_update.h"

#include <ranges>
#include <utility>

#include "tiering/plan/plan_moves.h"

namespace penstock {
namespace {

// What the pass over a tile moves through memory: everything once in, everything but the gradient once out.
uint64_t update_bytes(const Tile& tile) { return 2 * tile.slot_bytes() + tile.gradient_bytes; }

}  // namespace

MoveId UpdateMoves::add_move(MoveKind kind, Lane lane, TileId tile, uint64_t bytes, std::vector<MoveId> after,
                             Pool takes) {
  return add(plan_, {.kind = kind,
                     .lane = lane,
                     .takes = takes,
                     .unit = plan_.tiles[tile].unit,
                     .tile = tile,
                     .bytes = bytes,
                     .after = std::move(after)});
}

void UpdateMoves::add_tile(TileId tile, std::vector<MoveId> gradient_after, MoveId weight_here) {
  const Tile& shape = plan_.tiles[tile];
  const Placement& placement = plan_.placements[tile];
  Plan::TileMoves& moves = plan_.of_tile[tile];
  const bool state_on_nvme = placement.state_on_drives();
  const bool spilled = plan_.clipping && placement.gradient_spills();
  const bool weight_in_memory = placement.weight_in_host() || weight_here != kNoMove;
  moves.weight_copy = weight_here;

  if (placement.state_on_device()) {
    moves.gradient = add_move(MoveKind::gradient, Lane::none, tile, 0, std::move(gradient_after));
    if (!plan_.clipping) update_on_device(tile);
    return;
  }
  moves.gradient = add_move(MoveKind::gradient, Lane::none, tile, 0, std::move(gradient_after), Pool::gradient);
  if (spilled) {
    moves.spill = add_move(MoveKind::spill_gradient, Lane::nvme_write, tile, shape.gradient_bytes, {moves.gradient});
    moves.fetch_gradient = add_move(MoveKind::fetch_gradient, Lane::nvme_read, tile, shape.gradient_bytes,
                                    {moves.spill}, Pool::fetched_gradient);
  }
  if (state_on_nvme) {
    moves.read = add_move(MoveKind::read_state, Lane::nvme_read, tile,
                          weight_in_memory ? shape.state_bytes : shape.slot_bytes(), {}, Pool::window);
  }
  moves.update =
      add_move(MoveKind::update, Lane::update, tile, update_bytes(shape), {moves.gradient, moves.read, weight_here});
  moves.write = add_move(MoveKind::write_state, Lane::nvme_write, tile, shape.slot_bytes(), {moves.update});
  if (moves.read != kNoMove) release(plan_, moves.read, {moves.update, moves.write});
  if (moves.fetch_gradient != kNoMove) release(plan_, moves.fetch_gradient, {moves.update});
  if (spilled) moves.release_gradient = release(plan_, moves.gradient, {moves.spill});
  if (!plan_.clipping) moves.release_gradient = release(plan_, moves.gradient, {moves.update});
}

void UpdateMoves::update_on_device(TileId tile) {
  const Tile& shape = plan_.tiles[tile];
  Plan::TileMoves& moves = plan_.of_tile[tile];
  const uint64_t bytes = update_bytes(shape);
  moves.update = add_move(MoveKind::update, Lane::compute, tile, bytes, {moves.gradient, plan_.verdict});
  if (device_gbps_ > 0) plan_.moves[moves.update].seconds = static_cast<double>(bytes) / (device_gbps_ * 1e9);
}

void UpdateMoves::write_from_device(TileId tile) {
  const Tile& shape = plan_.tiles[tile];
  Plan::TileMoves& moves = plan_.of_tile[tile];
  moves.download =
      add_move(MoveKind::download_state, Lane::device_to_host, tile, shape.slot_bytes(), {moves.update}, Pool::window);
  moves.write = add_move(MoveKind::write_state, Lane::nvme_write, tile, shape.slot_bytes(), {moves.download});
  release(plan_, moves.download, {moves.write});
}

void UpdateMoves::finish() {
  std::vector<MoveId> gradients, writes;
  for (TileId tile : order_) gradients.push_back(plan_.of_tile[tile].gradient);
  plan_.verdict = add(plan_, {.kind = MoveKind::verdict, .after = gradients});
  const auto on_device = [&](TileId tile) { return plan_.placements[tile].state_on_device(); };
  if (plan_.clipping) {
    // The next forward waits for what follows the verdict, unit by unit.
    for (TileId tile : std::views::reverse(order_)) on_device(tile) ? update_on_device(tile) : redo_tile(tile);
  }
  for (TileId tile : order_) {
    if (on_device(tile)) write_from_device(tile);
  }
  for (TileId tile : order_) writes.push_back(plan_.of_tile[tile].write);
  if (plan_.clipping) {
    for (TileId tile : order_) writes.push_back(plan_.of_tile[tile].write_again);
  }
  writes.push_back(plan_.verdict);
  plan_.commit = add(plan_, {.kind = MoveKind::commit, .after = writes});
  // Where this step writes nothing, as after an overflow, its root still names what the step before it writes.
  std::erase(writes, kNoMove);
  std::erase(writes, plan_.verdict);
  plan_.moves[plan_.commit].after_previous = std::move(writes);
  plan_.moves[plan_.commit].after_previous.push_back(plan_.commit);

  for (TileId tile : order_) tie_to_step_before(tile);
}

void UpdateMoves::tie_to_step_before(TileId tile) {
  const Plan::TileMoves& moves = plan_.of_tile[tile];
  // A new version is read once it has been written, and overwrites only what no durable root names any more.
  std::vector<MoveId> versions = {moves.write, moves.write_again};
  std::erase(versions, kNoMove);
  for (MoveId id : {moves.read, moves.reread}) {
    if (id != kNoMove) plan_.moves[id].after_previous = versions;
  }
  std::vector<MoveId>& of_update = plan_.moves[moves.update].after_previous;
  of_update.insert(of_update.end(), versions.begin(), versions.end());
  of_update.push_back(moves.update);                               // a tile in host memory is not always written
  if (moves.reread != kNoMove) of_update.push_back(moves.reread);  // nor redone, but its weight may be restored
  plan_.moves[moves.write].after_previous = {plan_.commit};
  if (moves.write_again != kNoMove) plan_.moves[moves.write_again].after_previous = {plan_.commit};
  // What rests in memory is written also by a step that does not update it.
  if (plan_.placements[tile].state_in_host()) plan_.moves[moves.write].after_previous.push_back(moves.update);
  if (moves.download != kNoMove) {
    plan_.moves[moves.download].after_previous = {moves.update, moves.write};
    // A step that was given up leaves a download without its write.
    of_update.push_back(moves.download);
    plan_.moves[moves.download].after_previous.push_back(moves.download);
  }
  if (moves.spill != kNoMove) {  // one place on the drive holds the tile's gradient of every step
    // The spill itself as well: an update that found the gradient here has skipped its return.
    for (MoveId id : {moves.spill, moves.fetch_gradient, moves.fetch_again}) {
      if (id != kNoMove) plan_.moves[moves.spill].after_previous.push_back(id);
    }
  }
}

// A struck speculative update, once more from the old slot, with the true clip factor.
void UpdateMoves::redo_tile(TileId tile) {
  const Tile& shape = plan_.tiles[tile];
  Plan::TileMoves& moves = plan_.of_tile[tile];
  if (plan_.placements[tile].state_on_drives()) {
    // After the first read too: the verdict may come while that is under way, for an update that never begins. After
    // the verdict only where the first update was speculative: see PlanRun's gates.
    moves.reread = add_move(MoveKind::reread_state, Lane::nvme_read, tile, shape.slot_bytes(),
                            {moves.read, moves.update, moves.write}, Pool::window);
    if (moves.spill != kNoMove) {
      moves.fetch_again = add_move(MoveKind::fetch_gradient_again, Lane::nvme_read, tile, shape.gradient_bytes,
                                   {plan_.verdict, moves.spill, moves.fetch_gradient}, Pool::fetched_gradient);
    }
    moves.update_again =
        add_move(MoveKind::update_again, Lane::update, tile, update_bytes(shape), {moves.reread, moves.fetch_again});
    moves.write_again =
        add_move(MoveKind::write_state_again, Lane::nvme_write, tile, shape.slot_bytes(), {moves.update_again});
    release(plan_, moves.reread, {moves.update_again, moves.write_again});
    if (moves.fetch_again != kNoMove) release(plan_, moves.fetch_again, {moves.update_again});
  }
  if (moves.release_gradient == kNoMove) {
    std::vector<MoveId> users = {plan_.verdict, moves.update};
    if (moves.update_again != kNoMove) users.push_back(moves.update_again);
    moves.release_gradient = release(plan_, moves.gradient, users);
  }
}

}  // namespace penstock
