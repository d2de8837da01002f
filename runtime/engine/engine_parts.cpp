// Gradients that pass by: what the plan does not add up goes part after part to the places of its tiles, in order, so
// that no more of it is in memory than the tile that is being filled.
#include "runtime/engine/engine_waits.h"

namespace penstock::engine {

Status Engine::expect_no_arriving(const char* verb, uint32_t unit) const {
  if (!arriving_ || arriving_->unit == unit) return Status();
  // It holds a place that others might wait for.
  return Status(Code::kUsage,
                text(verb, ": unit ", unit, ": the gradient of unit ",
                     options_.request.workload.units[arriving_->unit].name, " has come in part"),
                "hand over the rest of it first");
}

Status Engine::pass_by(const GradientPart& part, const GradientIntake::Values& values) {
  updates_ = true;
  if (!arriving_) arriving_.emplace(part.unit, tiles_to_update(part.unit));
  Arriving& arriving = *arriving_;
  const uint64_t end = part.first_element + values.bytes.size() / bytes_of(values.dtype);
  const uint64_t size = bytes_of(options_.request.workload.form.gradient);
  for (uint64_t at = part.first_element; at < end;) {
    const TileId tile = arriving.tiles[arriving.next];
    const Tile& shape = plan_->tiles[tile];
    if (arriving.place.empty())
      PENSTOCK_TRY(take_places(std::span(arriving.tiles).subspan(arriving.next, 1), arriving.place));
    std::byte* const place = arriving.place.front().data();
    const uint64_t to = std::min(end, shape.first_element + shape.elements);
    intake_->convert(values, at - part.first_element, to - at, place + (at - shape.first_element) * size);
    at = to;
    if (at < shape.first_element + shape.elements) break;
    intake_->measure(place, shape.elements, squares_of(shape));
    complete_tile(tile, std::move(arriving.place.front()));
    arriving.place.pop_front();
    ++arriving.next;
  }
  if (arriving.next < arriving.tiles.size()) return Status();
  intake_->finished(part.unit);
  arriving_.reset();
  return Status();
}

// Leases end where they began.
void Engine::give_up_arriving() {
  if (!arriving_) return;
  thread_->ask([this] {
    arriving_.reset();
    return true;
  });
}

}  // namespace penstock::engine
