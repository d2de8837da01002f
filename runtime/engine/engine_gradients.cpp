// Engine's gradients: where each goes as it comes, and how a unit's go to the update once they are complete.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/engine/engine_waits.h"
#include "runtime/engine/rank_side.h"

namespace penstock::engine {
namespace {

constexpr size_t kPlacesAtOnce = 16;

}  // namespace

Status Engine::gradient(const GradientPart& part, Dtype dtype, std::span<const std::byte> values,
                        std::optional<Stream> stream) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "gradient"));
  PENSTOCK_TRY(expect_no_arriving("gradient", part.unit));
  const std::vector<uint32_t> uses = part.unit < options_.request.workload.units.size()
                                         ? uses_of(options_.request.workload, part.unit)
                                         : std::vector<uint32_t>{0};
  if (!part.use && uses.size() != 1) {
    return Status(Code::kUsage, text("gradient: unit ", part.unit, ": ", uses.size(), " uses have it"),
                  "say of which use the gradient is");
  }
  if (options_.request.workload.scope == StepScope::training) PENSTOCK_TRY(expect_backward(part));
  if (device_sums_) device_sums_->take_from(stream.value_or(pass_stream_));
  return as_intake([&] {
    const GradientIntake::Values given{dtype, values};
    PENSTOCK_TRY_ASSIGN(
        taken,
        intake_->take({part.unit, part.use.value_or(uses.front()), part.micro_batch, part.first_element}, given));
    if (taken == GradientIntake::Taken::completes_with) {
      PENSTOCK_TRY(hand_over(part.unit, [&](const auto& tiles) { intake_->finish(part.unit, given, tiles); }));
      intake_->finished(part.unit);
      return Status();
    }
    if (taken == GradientIntake::Taken::passes_by) return pass_by(part, given);
    if (device_sums_) return device_refused(device_sums_->status());
    if (taken == GradientIntake::Taken::completes) completed_.push_back(part.unit);
    // Within a pass the plan does not expect it yet.
    return has_acquired_ ? Status() : hand_over_completed();
  });
}

Status Engine::expect_backward(const GradientPart& part) const {
  if (has_acquired_) {
    const ComputePass held = pass_of(plan_->computes[next_compute_]);
    const bool is_its = held.direction == Direction::backward && part.micro_batch == held.micro_batch &&
                        part.use.value_or(held.use) == held.use;
    if (is_its) return Status();
  }
  return Status(
      Code::kUsage,
      text("gradient: unit ", part.unit, ", micro-batch ", part.micro_batch, ": its backward pass is not acquired"),
      "give gradients between acquire() and release() of their backward pass");
}

Status Engine::hand_over_completed() {
  GradientIntake& intake = downloaded_intake_ ? *downloaded_intake_ : *intake_;
  for (uint32_t unit : std::exchange(completed_, {})) {
    // Of several ranks, it comes with gradient_of_all().
    if (!options_.has_other_ranks()) {
      PENSTOCK_TRY(hand_over(unit, [&](const auto& tiles) { intake.finish(unit, {}, tiles); }));
    }
    intake.finished(unit);
  }
  return Status();
}

Status Engine::gradient_of_all(uint32_t unit, const std::vector<bool>& absent) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "gradient of all ranks"));
  CHECK((downloaded_intake_ ? *downloaded_intake_ : *intake_).complete(unit), "unit ", unit, ": its passes go on");
  Skipped& skipped = skipped_[unit];
  skipped.whole = absent.back();
  for (uint32_t parameter = 0; parameter < skipped.parameters.size(); ++parameter) {
    skipped.parameters[parameter] = absent[parameter];
    if (absent[parameter] && !skipped.whole) {
      PENSTOCK_TRY(refuse_shared_scales(options_.request.workload.units[unit], parameter));
    }
  }
  return as_intake([&] {
    if (skipped.whole) {
      skip_all_tiles(unit);
      return thread_->ask([&] { return core_->executor().status(); });
    }
    return hand_over(unit, [&](const auto& tiles) {
      for (const GradientIntake::Target& tile : tiles)
        options_.ranks->take_gradient(unit, tile.first_element, tile.elements, tile.place, tile.squares);
    });
  });
}

Status Engine::take_in(const DownloadedSum& downloaded) {
  const Move& move = plan_->moves[downloaded.ticket.move];
  if (move.kind == MoveKind::download_squares) return take_in_squares(downloaded, move.unit);
  const uint64_t elements = options_.request.workload.units[move.unit].elements;
  const Dtype dtype =
      downloaded.values.size() == elements * sizeof(float) ? Dtype::fp32 : options_.request.workload.form.gradient;
  // Of a unit that was declared absent, nobody wants it.
  const bool is_wanted = !downloaded_intake_->complete(move.unit);
  const uint32_t left_out = plan_->micro_batches - begin_.micro_batches;
  const uint32_t micro_batch = is_vertical(*plan_) ? 0 : move.micro_batch - left_out;
  if (is_wanted) {
    const Result<GradientIntake::Taken> taken =
        downloaded_intake_->take({move.unit, move.use, micro_batch, 0}, {dtype, downloaded.values});
    CHECK(taken.ok(), "what was downloaded from the device: ", taken.status().message());
    if (*taken == GradientIntake::Taken::completes) completed_.push_back(move.unit);
  }
  thread_->mailbox().post([this, ticket = downloaded.ticket] { core_->executor().end_download(ticket); });
  return hand_over_completed();
}

// The gradient stays on the device, and so does its update.
Status Engine::take_in_squares(const DownloadedSum& downloaded, uint32_t unit) {
  const bool is_wanted = !downloaded_intake_->complete(unit);
  if (is_wanted) std::memcpy(squares_[unit].data(), downloaded.values.data(), downloaded.values.size());
  thread_->mailbox().post([this, ticket = downloaded.ticket] { core_->executor().end_download(ticket); });
  if (!is_wanted) return Status();
  updates_ = true;
  for (TileId tile : tiles_to_update(unit)) {
    thread_->mailbox().post([this, tile, squares = squares_of(plan_->tiles[tile])] {
      core_->executor().gradient_on_device(tile, squares);
    });
  }
  return Status();
}

// Places are asked for together, as far as they are free: each question is two switches of threads.
Status Engine::take_places(std::span<const TileId> tiles, std::deque<Lease>& places) {
  return wait_for(
      [&places, left = tiles.first(std::min(tiles.size(), kPlacesAtOnce))](EngineCore& core) mutable {
        for (; !left.empty(); left = left.subspan(1)) {
          std::optional<Lease> place = core.executor().try_take_gradient(left.front());
          if (!place) break;
          places.push_back(std::move(*place));
        }
        return !places.empty();
      },
      [](EngineCore&) { return Status(); });
}

Status Engine::hand_over(uint32_t unit, const FillGradients& fill) {
  updates_ = true;
  const std::vector<TileId> tiles = tiles_to_update(unit);
  for (std::span<const TileId> left = tiles; !left.empty();) {
    std::deque<Lease> places;  // of the first of them
    if (Status taken = take_places(left, places); !taken.ok()) {
      // Leases end where they began.
      thread_->ask([&] {
        places.clear();
        return true;
      });
      return taken;
    }
    std::vector<GradientIntake::Target> targets;
    for (size_t i = 0; i < places.size(); ++i) {
      const Tile& tile = plan_->tiles[left[i]];
      targets.push_back({tile.first_element, tile.elements, places[i].data(), squares_of(tile)});
    }
    fill(targets);
    for (size_t i = 0; i < places.size(); ++i) complete_tile(left[i], std::move(places[i]));
    left = left.subspan(places.size());
  }
  return Status();
}

std::span<double> Engine::squares_of(const Tile& tile) {
  const uint64_t first_block = tile.first_element / kBlockElements;
  return {squares_[tile.unit].data() + first_block, ceil_div(tile.elements, kBlockElements)};
}

void Engine::complete_tile(TileId tile, Lease gradient) {
  thread_->mailbox().post(
      [this, tile, squares = squares_of(plan_->tiles[tile]), place = std::make_shared<Lease>(std::move(gradient))] {
        core_->executor().gradient_complete(tile, std::move(*place), squares);
      });
}

}  // namespace penstock::engine
