// The steps of EmbeddedEngine: gradients in, weights out.
#include "runtime/engine/embedded_engine.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace penstock::engine {

Status EmbeddedEngine::check(const char* verb, uint32_t parameter) const {
  if (parameter < options_.parameters.size()) return Status();
  return Status(Code::kUsage, text(verb, ": parameter ", parameter, " of ", options_.parameters.size()));
}

Status EmbeddedEngine::begin(const std::vector<Hyper>& groups, uint32_t micro_batches, double loss_scale) {
  const auto now = std::chrono::steady_clock::now();
  PENSTOCK_TRY(engine_->begin({.groups = groups, .micro_batches = micro_batches, .loss_scale = loss_scale}));
  std::fill(got_.begin(), got_.end(), Got::nothing);
  published_.begin();
  arriving_.reset();
  in_step_ = true;
  began_ = now;
  return Status();
}

Status EmbeddedEngine::gradient(uint32_t parameter, uint32_t micro_batch, Dtype dtype, const std::byte* values) {
  PENSTOCK_TRY(check("gradient", parameter));
  return gradient_part(parameter, micro_batch, 0, shape(parameter).elements, dtype, values);
}

Status EmbeddedEngine::gradient_part(uint32_t parameter, uint32_t micro_batch, uint64_t first, uint64_t count,
                                     Dtype dtype, const std::byte* values) {
  PENSTOCK_TRY(check_run("gradient", parameter, first, count));
  const std::string& name = shape(parameter).name;
  if (values == nullptr) return Status(Code::kUsage, text("gradient: parameter ", name, ": NULL"));
  if (count == 0) return Status(Code::kUsage, text("gradient: parameter ", name, ": no values"));
  const bool goes_on = in_step_ && arriving_ && arriving_->parameter == parameter &&
                       arriving_->micro_batch == micro_batch && arriving_->next == first;
  if (!goes_on) PENSTOCK_TRY(expect_whole(text("gradient: parameter ", name, ", values from ", first, " on")));
  if (!goes_on && first > 0) {
    return Status(Code::kUsage, text("gradient: parameter ", name, ": values from ", first, " on, expected from 0 on"),
                  "hand over the parts of a gradient in order");
  }
  const EmbeddedModel::Place& place = model_.places[parameter];
  const bool is_first = note(parameter, Got::gradient);
  const GradientPart part{
      .unit = place.id.unit, .micro_batch = micro_batch, .first_element = place.first_element + first};
  const Status given = engine_->gradient(part, dtype, {values, count * bytes_of(dtype)});
  if (given.code() == Code::kUsage) {
    if (is_first) got_[parameter] = Got::nothing;
  } else if (first + count < shape(parameter).elements) {
    arriving_ = {parameter, micro_batch, first + count};
  } else {
    arriving_.reset();
  }
  return given.within(text("parameter ", name));
}

// What has come in part comes whole before anything else.
Status EmbeddedEngine::expect_whole(const std::string& verb) const {
  if (!in_step_ || !arriving_) return Status();
  return Status(Code::kUsage,
                text(verb, ": of the gradient of parameter ", shape(arriving_->parameter).name, ", micro-batch ",
                     arriving_->micro_batch, ", ", arriving_->next, " of ", shape(arriving_->parameter).elements,
                     " values have come"),
                "hand over the rest of it first");
}

Status EmbeddedEngine::absent(uint32_t parameter) {
  PENSTOCK_TRY(check("absent", parameter));
  PENSTOCK_TRY(expect_whole("absent"));
  const bool is_first = note(parameter, Got::absent);
  const Status told = engine_->absent_gradient(model_.places[parameter].id, Absent::skip);
  if (is_first && told.code() == Code::kUsage) got_[parameter] = Got::nothing;
  return told;
}

bool EmbeddedEngine::note(uint32_t parameter, Got got) {
  if (got_[parameter] != Got::nothing) return false;
  got_[parameter] = got;
  return true;
}

Status EmbeddedEngine::publish() {
  if (!in_step_) return Status(Code::kUsage, "publish: called outside a step", "call begin() first");
  published_.allow();
  return Status();
}

Result<StepReport> EmbeddedEngine::step(std::string trainer_state) {
  PENSTOCK_TRY(expect_whole("step"));
  // The engine's own refusal would name a unit. In whole steps what has not come is zero.
  for (uint32_t i = 0; i < got_.size() && in_step_ && !options_.settings.whole_steps; ++i) {
    if (got_[i] != Got::nothing) continue;
    return Status(Code::kUsage, text("step: parameter ", shape(i).name, " has no gradient"),
                  "hand it over, or declare it absent");
  }
  PENSTOCK_TRY_ASSIGN(report, engine_->step(std::move(trainer_state)));
  in_step_ = false;
  published_.allow();
  // In whole steps the tail of the updates runs under the next forward.
  const bool publishes = published_.any_wanted();
  if (!options_.settings.whole_steps || publishes) PENSTOCK_TRY(engine_->finish());
  // With what the engine's own report leaves to the next one: the last updates, and their writes.
  const DriveBytes moved = engine_->drive_bytes(), since = moved - reported_;
  reported_ = moved;
  report.read_bytes = since.read_bytes;
  report.written_bytes = since.written_bytes;
  if (engine_options_.on_updated) {
    PENSTOCK_TRY(publish_from_store(published_.missed()));
  } else if (publishes && report.verdict != Verdict::skip) {
    std::vector<uint32_t> all(got_.size());
    std::iota(all.begin(), all.end(), 0);
    PENSTOCK_TRY(publish_from_store(all));
  }
  report.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  return report;
}

Status EmbeddedEngine::discard() {
  PENSTOCK_TRY(engine_->discard());
  acquired_.reset();
  in_step_ = false;
  return publish_from_store(published_.given());
}

void EmbeddedEngine::updated(uint32_t unit, uint64_t first, std::span<const std::byte> weights) {
  const uint64_t end = first + weights.size() / sizeof(float);
  const std::vector<uint32_t>& numbers = model_.of_unit[unit];
  auto begins_later = [&](uint64_t element, uint32_t number) { return element < model_.places[number].first_element; };
  auto number = std::upper_bound(numbers.begin(), numbers.end(), first, begins_later);
  if (number != numbers.begin()) --number;
  for (; number != numbers.end() && model_.places[*number].first_element < end; ++number) {
    const uint64_t begins = model_.places[*number].first_element;
    const uint64_t from = std::max(first, begins), to = std::min(end, begins + shape(*number).elements);
    // The tail of a whole step, whose weights nobody wants, may run when the next one has begun to note.
    if (from >= to || !published_.wanted(*number) || got_[*number] == Got::absent) continue;
    published_.offer(*number, from - begins,
                     weights.subspan((from - first) * sizeof(float), (to - from) * sizeof(float)));
  }
}

uint64_t EmbeddedEngine::elements() const {
  uint64_t sum = 0;
  for (const EmbeddedParameter& parameter : options_.parameters) sum += parameter.elements;
  return sum;
}

Status EmbeddedEngine::publish_from_store(const std::vector<uint32_t>& parameters) {
  for (uint32_t i : parameters) {
    if (published_.wanted(i) && got_[i] != Got::absent) PENSTOCK_TRY(publish_from_store(i));
  }
  return failure();
}

Status EmbeddedEngine::publish_from_store(uint32_t number) {
  const EmbeddedParameter& parameter = shape(number);
  if (!parameter.weights.out) {
    return read(number, Role::weight, 0, parameter.elements, parameter.dtype, parameter.weights.into);
  }
  std::vector<float> masters(std::min(parameter.elements, kRunElements));
  for (uint64_t first = 0; first < parameter.elements; first += masters.size()) {
    const uint64_t here = std::min<uint64_t>(masters.size(), parameter.elements - first);
    PENSTOCK_TRY(read(number, Role::weight, first, here, Dtype::fp32, reinterpret_cast<std::byte*>(masters.data())));
    published_.give(number, first, std::as_bytes(std::span(masters).first(here)));
  }
  return Status();
}

// -- whole steps ------------------------------------------------------------------------------------------------------

Status EmbeddedEngine::acquire(const ComputePass& pass) {
  PENSTOCK_TRY_ASSIGN(weights, engine_->acquire(pass));
  acquired_ = pass;
  unit_weights_ = weights.front().bytes.data();
  return Status();
}

Status EmbeddedEngine::release(const ComputePass& pass) {
  PENSTOCK_TRY(engine_->release(pass));
  acquired_.reset();
  return Status();
}

Status EmbeddedEngine::end_forward() {
  PENSTOCK_TRY(engine_->end_forward());
  acquired_.reset();
  return Status();
}

Result<const float*> EmbeddedEngine::weight(uint32_t parameter) const {
  PENSTOCK_TRY(check("weight", parameter));
  const EmbeddedModel::Place& place = model_.places[parameter];
  if (!acquired_ || acquired_->use != place.id.unit) {
    return Status(Code::kUsage, text("weight: parameter ", shape(parameter).name, ": its unit is not acquired"));
  }
  return reinterpret_cast<const float*>(unit_weights_) + place.first_element;
}

}  // namespace penstock::engine
