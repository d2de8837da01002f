// Engine's verbs within a step: passes through uses, and the gradients that come of them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/engine/engine_waits.h"
#include "runtime/engine/rank_side.h"

namespace penstock::engine {
namespace {

constexpr uint32_t kPlacesAtOnce = 4;
constexpr uint64_t kPutAlignmentBytes = 256;

const char* name_of(Direction direction) { return direction == Direction::forward ? "forward" : "backward"; }

}  // namespace

// -- passes -----------------------------------------------------------------------------------------------------------

// A step of fewer micro-batches than planned has the plan's last ones.
void Engine::skip_left_out_computes() {
  const uint32_t left_out = plan_->micro_batches - begin_.micro_batches;
  const std::vector<Compute>& computes = plan_->computes;
  while (next_compute_ < computes.size() && computes[next_compute_].micro_batch < left_out) ++next_compute_;
}

ComputePass Engine::pass_of(const Compute& compute) const {
  return {compute.direction, compute.use, compute.micro_batch - (plan_->micro_batches - begin_.micro_batches)};
}

std::vector<ComputePass> Engine::passes() const {
  std::vector<ComputePass> all;
  const uint32_t left_out = plan_->micro_batches - std::min(plan_->micro_batches, begin_.micro_batches);
  for (const Compute& compute : plan_->computes) {
    if (compute.micro_batch >= left_out) all.push_back(pass_of(compute));
  }
  return all;
}

std::string Engine::words_of(const ComputePass& pass) const {
  const std::vector<Use>& uses = options_.request.workload.uses;
  return text(name_of(pass.direction), " of use ", pass.use < uses.size() ? uses[pass.use].name : text(pass.use),
              ", micro-batch ", pass.micro_batch);
}

Status Engine::expect_pass(const ComputePass& pass, const char* verb) const {
  if (next_compute_ == plan_->computes.size()) {
    return Status(Code::kUsage, text(verb, ": ", words_of(pass), ": the step has no further pass"));
  }
  const ComputePass next = pass_of(plan_->computes[next_compute_]);
  if (next == pass) return Status();
  return Status(Code::kUsage, text(verb, ": ", words_of(pass), ": expected ", words_of(next)),
                "follow Engine::passes(), or plan with the micro-batch group that the trainer has");
}

Result<std::vector<UnitWeights>> Engine::acquire(const ComputePass& pass, Stream stream) {
  std::lock_guard lock(verbs_);
  if (now_ == Now::in_forward) return acquire_in_forward(pass, stream);
  PENSTOCK_TRY(expect(Now::in_step, "acquire"));
  PENSTOCK_TRY(expect_pass(pass, "acquire"));
  if (has_acquired_) return Status(Code::kUsage, "acquire: the pass before has not been released");
  report_.trainer_s += seconds_since(left_);
  const Compute& compute = plan_->computes[next_compute_];
  std::vector<UnitWeights> weights;
  std::vector<Event> before;
  PENSTOCK_TRY(wait_taking_in([&](EngineCore& core) { return core.executor().is_granted(compute.move); },
                              [&](EngineCore& core) {
                                const auto views = core.executor().weights_of(compute);
                                for (size_t i = 0; i < views.size(); ++i) {
                                  weights.push_back(weights_of(compute.weights[i].unit, views[i]));
                                }
                                before = core.executor().events_before(compute.move);
                                pass_activation_ = core.executor().activation_of(compute);
                                return Status();
                              }));
  for (const Event& event : before) PENSTOCK_TRY(device_refused(core_->device()->device().make_wait(stream, event)));
  pass_stream_ = stream;
  if (device_sums_) device_sums_->begin_pass(compute, stream);
  has_acquired_ = true;
  left_ = Clock::now();
  return weights;
}

Status Engine::release(const ComputePass& pass) {
  std::lock_guard lock(verbs_);
  if (now_ == Now::in_forward) return release_in_forward(pass);
  PENSTOCK_TRY(expect(Now::in_step, "release"));
  PENSTOCK_TRY(expect_pass(pass, "release"));
  if (!has_acquired_) return Status(Code::kUsage, "release: the pass was not acquired");
  const bool is_backward = pass.direction == Direction::backward;
  Event done;
  if (device_sums_) {
    if (is_backward) {
      (void)intake_->end_pass(pass.use, pass.micro_batch);
      if (pass.micro_batch + 1 == begin_.micro_batches) device_sums_->round();
      PENSTOCK_TRY(device_refused(device_sums_->status()));
    }
    const Result<Event> event = core_->device()->device().record(pass_stream_);
    PENSTOCK_TRY(device_refused(event.status()));
    done = *event;
  }
  has_acquired_ = false;
  const Compute& compute = plan_->computes[next_compute_];
  thread_->mailbox().post([this, done, move = compute.move] {
    if (core_->executor().is_granted(move)) core_->executor().end_compute(move, done);
  });
  ++next_compute_;
  skip_left_out_computes();
  if (!is_backward) return Status();
  if (device_sums_) {
    if (options_.ranks == nullptr) return Status();
    // What ranks have added up lies where the next unit's sum will: it is taken now, instead of what is downloaded.
    report_.trainer_s += seconds_since(left_);
    const Status taken =
        wait_taking_in([&](EngineCore& core) { return core.executor().has_ended_downloads_of(compute); },
                       [](EngineCore&) { return Status(); });
    left_ = Clock::now();
    return taken;
  }
  return as_intake([&] {
    const std::vector<uint32_t> complete = intake_->end_pass(pass.use, pass.micro_batch);
    completed_.insert(completed_.end(), complete.begin(), complete.end());
    return hand_over_completed();
  });
}

void Engine::when_weights(const ComputePass& pass, ThenWeights then) {
  std::lock_guard lock(verbs_);
  const auto compute = std::find_if(plan_->computes.begin(), plan_->computes.end(),
                                    [&](const Compute& each) { return pass_of(each) == pass; });
  CHECK(compute != plan_->computes.end(), words_of(pass), ": the plan has no such pass");
  thread_->mailbox().post([this, of = &*compute, then = std::move(then)]() mutable {
    Executor& executor = core_->executor();
    executor.when([of, &executor] { return executor.has_weights_of(*of); },
                  [this, of, &executor, then = std::move(then)](const Status& status) {
                    std::vector<UnitWeights> weights;
                    if (status.ok()) {
                      const auto views = executor.weights_before(*of);
                      for (size_t i = 0; i < views.size(); ++i) {
                        weights.push_back(weights_of(of->weights[i].unit, views[i]));
                      }
                    }
                    then(status, std::move(weights));
                  });
  });
}

UnitWeights Engine::weights_of(uint32_t unit, std::span<std::byte> bytes) const {
  const Workload& workload = options_.request.workload;
  const uint64_t elements = workload.units[unit].elements;
  return {unit, elements, bytes.first(elements * bytes_of(workload.form.weight))};
}

Status Engine::expect_held(const ComputePass& pass, Direction direction, const char* verb) const {
  if (has_acquired_ && pass.direction == direction && pass == pass_of(plan_->computes[next_compute_])) return Status();
  return Status(Code::kUsage,
                text(verb, ": ", words_of(pass), " is not acquired, or not a ", name_of(direction), " pass"),
                text("call it between acquire() and release() of a ", name_of(direction), " pass"));
}

Result<std::span<std::byte>> Engine::put(const ComputePass& pass, uint64_t bytes) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "put"));
  PENSTOCK_TRY(expect_held(pass, Direction::forward, "put"));
  std::vector<MemoryRun>& runs = put_[{pass.use, pass.micro_batch}];
  const uint64_t begin = runs.empty() ? 0 : round_up(runs.back().offset_bytes + runs.back().bytes, kPutAlignmentBytes);
  const uint64_t room = pass_activation_.size();
  if (begin > room || bytes > room - begin) {
    return Status(Code::kDoesNotFit,
                  text("put: ", words_of(pass), ": ", bytes, " B do not fit behind the ", begin,
                       " B already there: the plan has room for ", room, " B"),
                  plan_->stores_activations ? "give the use's activation_bytes, or boundary_bytes if it is recomputed"
                                            : "plan with stores_activations");
  }
  runs.push_back({begin, bytes});
  return pass_activation_.subspan(begin, bytes);
}

Result<std::span<std::byte>> Engine::get(const ComputePass& pass, size_t number) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "get"));
  PENSTOCK_TRY(expect_held(pass, Direction::backward, "get"));
  const std::vector<MemoryRun>& runs = put_[{pass.use, pass.micro_batch}];
  if (number >= runs.size()) {
    return Status(Code::kUsage, text("get: ", words_of(pass), ": number ", number, ": ", runs.size(), " were put"));
  }
  return pass_activation_.subspan(runs[number].offset_bytes, runs[number].bytes);
}

Status Engine::device_refused(const Status& status) {
  if (status.ok()) return status;
  now_ = Now::between_steps;
  return thread_->ask([&] {
    core_->executor().fail(status);
    return core_->executor().status();
  });
}

// -- gradients --------------------------------------------------------------------------------------------------------

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
      PENSTOCK_TRY(hand_over(part.unit, [&](const Tile& tile, std::byte* place, std::span<double> squares) {
        intake_->finish(part.unit, given, tile.first_element, tile.elements, place, squares);
      }));
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
      PENSTOCK_TRY(hand_over(unit, [&](const Tile& tile, std::byte* place, std::span<double> squares) {
        intake.finish(unit, {}, tile.first_element, tile.elements, place, squares);
      }));
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
    return hand_over(unit, [&](const Tile& tile, std::byte* place, std::span<double> squares) {
      options_.ranks->take_gradient(unit, tile.first_element, tile.elements, place, squares);
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
      [&places, left = tiles.first(std::min<size_t>(tiles.size(), kPlacesAtOnce))](EngineCore& core) mutable {
        for (; !left.empty(); left = left.subspan(1)) {
          std::optional<Lease> place = core.executor().try_take_gradient(left.front());
          if (!place) break;
          places.push_back(std::move(*place));
        }
        return !places.empty();
      },
      [](EngineCore&) { return Status(); });
}

// Whose gradient is complete: the others have none, which the update is told. With the last gradient of a unit all is
// known that its updates leave out, and none of them has begun.
std::vector<TileId> Engine::tiles_to_update(uint32_t unit) {
  std::vector<TileId> tiles, untouched;
  const std::vector<bool>& skipped = skipped_[unit].parameters;
  const bool all = std::find(skipped.begin(), skipped.end(), true) == skipped.end();
  const std::vector<ParameterRun> runs =
      parameter_runs(options_.request.workload.units[unit], options_.request.workload.form);
  auto run = runs.begin();
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) {
    const uint64_t first = plan_->tiles[tile].first_element, end = first + plan_->tiles[tile].elements;
    while (run->end_element <= first) ++run;
    bool keeps = is_untouched(unit, *run);
    for (auto other = run; keeps && other->end_element < end;) keeps = is_untouched(unit, *++other);
    (keeps ? untouched : tiles).push_back(tile);
  }
  if (all) return tiles;
  thread_->mailbox().post([this, unit, numbers = numbers_of(begin_, unit)]() mutable {
    core_->executor().set_numbers(unit, std::move(numbers));
  });
  skip_tiles(untouched);
  return tiles;
}

void Engine::skip_tiles(const std::vector<TileId>& tiles) {
  for (TileId tile : tiles) {
    const Tile& shape = plan_->tiles[tile];
    const auto first = squares_[shape.unit].begin() + static_cast<ptrdiff_t>(shape.first_element / kBlockElements);
    std::fill_n(first, ceil_div(shape.elements, kBlockElements), 0.0);
  }
  thread_->ask([&] {
    for (TileId tile : tiles) {
      if (core_->executor().status().ok()) core_->executor().gradient_absent(tile);
    }
    return true;
  });
}

void Engine::skip_all_tiles(uint32_t unit) {
  std::vector<TileId> tiles;
  for (TileId tile = plan_->tiles.first_of(unit); tile < plan_->tiles.first_of(unit + 1); ++tile) tiles.push_back(tile);
  skip_tiles(tiles);
}

Status Engine::hand_over(uint32_t unit, const FillGradient& fill) {
  updates_ = true;
  std::vector<TileId> tiles = tiles_to_update(unit);
  std::deque<Lease> places;  // of this tile and those that follow
  for (size_t i = 0; i < tiles.size(); ++i) {
    const TileId tile = tiles[i];
    const Tile& shape = plan_->tiles[tile];
    if (places.empty()) {
      if (Status taken = take_places(std::span(tiles).subspan(i), places); !taken.ok()) {
        // Leases end where they began.
        thread_->ask([&] {
          places.clear();
          return true;
        });
        return taken;
      }
    }
    Lease place = std::move(places.front());
    places.pop_front();
    fill(shape, place.data(), squares_of(shape));
    complete_tile(tile, std::move(place));
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

Status Engine::absent_gradient(uint32_t unit, Absent absent) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "absent_gradient"));
  const std::vector<Unit>& units = options_.request.workload.units;
  auto refuse = [](const std::string& why) { return Status(Code::kUsage, "absent gradient: unit " + why); };
  if (unit >= units.size()) return refuse(text(unit, " of ", units.size()));
  const Unit& shape = units[unit];
  if (!shape.trainable) return refuse(shape.name + " is frozen");
  PENSTOCK_TRY(expect_no_arriving("absent gradient", unit));
  if (std::string why = intake_->why_not_absent(unit); !why.empty()) return refuse(shape.name + why);
  // What its passes do not give is zero, and complete with the last of them.
  if (absent == Absent::zero && options_.request.workload.scope == StepScope::training) return Status();
  intake_->give_up(unit);
  if (downloaded_intake_) downloaded_intake_->give_up(unit);
  if (absent == Absent::zero) {
    return as_intake([&] {
      return hand_over(unit, [](const Tile& tile, std::byte* place, std::span<double> squares) {
        std::memset(place, 0, tile.gradient_bytes);
        std::fill(squares.begin(), squares.end(), 0.0);
      });
    });
  }
  skipped_[unit].whole = true;
  return as_intake([&] {
    skip_all_tiles(unit);
    return thread_->ask([&] { return core_->executor().status(); });
  });
}

Status Engine::absent_gradient(ParameterId id, Absent absent) {
  std::lock_guard lock(verbs_);
  PENSTOCK_TRY(expect(Now::in_step, "absent_gradient"));
  PENSTOCK_TRY(check_parameter("absent gradient", id));
  PENSTOCK_TRY(expect_no_arriving("absent gradient", id.unit));
  const Unit& unit = options_.request.workload.units[id.unit];
  if (arriving_) {
    return Status(Code::kUsage, text("absent gradient: of the gradient of unit ", unit.name, " a part has come"),
                  "declare parameters absent before the first part, or open the engine with gradient_in_parts");
  }
  if (absent == Absent::skip) PENSTOCK_TRY(refuse_shared_scales(unit, id.parameter));
  return as_intake([&] {
    PENSTOCK_TRY_ASSIGN(completes, intake_->give_up(id.unit, id.parameter));
    Skipped& skipped = skipped_[id.unit];
    skipped.parameters[id.parameter] = absent == Absent::skip;
    // Without any of its parameters nothing is left of it to update.
    skipped.whole = std::find(skipped.parameters.begin(), skipped.parameters.end(), false) == skipped.parameters.end();
    if (completes) completed_.push_back(id.unit);
    return has_acquired_ ? Status() : hand_over_completed();
  });
}

// Elements that have one scale are all updated, or none is.
Status Engine::refuse_shared_scales(const Unit& unit, uint32_t number) const {
  const StateForm& form = options_.request.workload.form;
  if (form.moments != MomentForm::int8) return Status();
  uint64_t begin = 0;
  for (const ParameterRun& run : parameter_runs(unit, form)) {
    const bool is_cut = begin % kMomentBlockElements != 0 ||
                        (run.end_element % kMomentBlockElements != 0 && run.end_element != unit.elements);
    begin = run.end_element;
    if (run.parameter != number || !is_cut) continue;
    return Status(Code::kUsage,
                  text("absent gradient: parameter ", unit.parameters[number].name, " of unit ", unit.name,
                       ": some of its int8 moments share a scale with a neighbour's"),
                  text("let parameters begin at multiples of ", kMomentBlockElements, " elements"));
  }
  return Status();
}

}  // namespace penstock::engine
