#include "runtime/engine/embedded_engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "runtime/engine/ranks/rank_agreement.h"

namespace penstock::engine {
namespace {

// Converted at once.
constexpr uint64_t kRunElements = 1 << 20;

std::byte* bytes_at(float* values) { return reinterpret_cast<std::byte*>(values); }

Status make_folders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return errno_status(text("make the folder ", folder), error.value());
  }
  return Status();
}

}  // namespace

EmbeddedEngine::EmbeddedEngine(EmbeddedOptions options, EmbeddedModel model)
    : options_(std::move(options)),
      model_(std::move(model)),
      published_(options_.parameters, options_.weights_out),
      got_(options_.parameters.size()) {}

Result<std::unique_ptr<EmbeddedEngine>> EmbeddedEngine::open(EmbeddedOptions options) {
  if (options.drives.empty()) return Status(Code::kUsage, "open: no drives", "name a folder on a drive");
  PENSTOCK_TRY_ASSIGN(model, EmbeddedModel::of(options.parameters, options.settings));
  auto engine = std::unique_ptr<EmbeddedEngine>(new EmbeddedEngine(std::move(options), std::move(model)));
  for (uint32_t i = 0; i < engine->got_.size(); ++i) PENSTOCK_TRY(engine->check_weights(i, engine->shape(i).weights));
  PENSTOCK_TRY(engine->start());
  return engine;
}

EmbeddedEngine::~EmbeddedEngine() {
  engine_.reset();  // until then update threads look at what is destroyed after it
}

Status EmbeddedEngine::close() {
  if (engine_ == nullptr) return Status();
  // Of several ranks a step that one gives up ends for all.
  if (ranks_ && in_step_) {
    engine_.reset();
    return ranks_->status();
  }
  (void)discard();  // refused where no step has begun
  const Status status = engine_->settle();
  engine_.reset();
  return status;
}

bool EmbeddedEngine::has_store() const {
  std::error_code unknown;
  const std::string name = aio::store_file_name(options_.place.rank);
  return std::any_of(options_.drives.begin(), options_.drives.end(), [&](const std::string& folder) {
    return std::filesystem::exists(folder + "/" + name, unknown) || unknown;
  });
}

Status EmbeddedEngine::start() {
  PENSTOCK_TRY(make_folders(options_.drives));
  PlanRequest& request = engine_options_.request;
  request.workload = model_.workload;
  request.budgets.host_bytes = options_.host_bytes;
  request.process_bytes = kEngineOverheadBytes;
  request.durability = options_.durability;
  request.slots = options_.slots;
  if (!options_.settings.whole_steps && options_.settings.micro_batches > 1) request.choices.micro_batch_group = 1;
  engine_options_.drives = direct_drives(options_.drives);
  engine_options_.update_threads = options_.threads;
  engine_options_.initial_step = options_.initial_step;
  if (options_.place.ranks > 1) PENSTOCK_TRY(meet_others());
  // Where updates are final as soon as they have ended, weights are given from the update's own memory.
  if (!ranks_ && !options_.settings.clipping.may_take_back()) {
    engine_options_.on_updated = [this](uint32_t unit, uint64_t first, std::span<const std::byte> weights) {
      updated(unit, first, weights);
    };
  }
  kept_.emplace(std::vector{KeptSteps(options_.drives, {options_.place.rank, options_.place.ranks})}, ranks_.get());
  const bool there = has_store();
  PENSTOCK_TRY(look_at_store(there));
  if (options_.existing == EmbeddedOptions::Existing::replace || !there) {
    if (ranks_) PENSTOCK_TRY(kept_->forget_rollback());
    PENSTOCK_TRY(create(options_.existing == EmbeddedOptions::Existing::replace ? aio::Existing::replace
                                                                                : aio::Existing::refuse));
  } else if (ranks_) {
    PENSTOCK_TRY(kept_->finish_rollback().status());
  }
  PENSTOCK_TRY(open_store());
  return ranks_ ? kept_->drop_incomplete().status() : Status();
}

// Before it waits for the others.
Status EmbeddedEngine::check_ranks() const {
  if (!options_.settings.whole_steps) {
    return Status(Code::kUsage,
                  text("open: rank ", options_.place.rank, " of ", options_.place.ranks,
                       ": several ranks need whole steps, in which the engine keeps the weights"),
                  "set whole_steps, or leave ranks_of_environment at 0");
  }
  for (const EmbeddedParameter& parameter : options_.parameters) {
    if (parameter.weights == EmbeddedParameter::Weights()) continue;
    return Status(Code::kUsage,
                  text("open: parameter ", parameter.name,
                       ": weights_into: each of several ranks has a part of the new weights alone"),
                  "leave it NULL: penstock_acquire() and penstock_read() give all of them");
  }
  return RankedEngine::check(ranked(), options_.place.ranks);
}

Status EmbeddedEngine::meet_others() {
  PENSTOCK_TRY(check_ranks());
  PENSTOCK_TRY_ASSIGN(ranks,
                      meet({.place = options_.place,
                            .memory_bytes = RankedEngine::memory_of(ranked(), options_.place.ranks).shared_bytes(),
                            .silent_at_most = options_.hangs_after,
                            .hangs_after = options_.hangs_after}));
  ranks_ = std::move(ranks);
  return Status();
}

Status EmbeddedEngine::look_at_store(bool there) const {
  using Existing = EmbeddedOptions::Existing;
  if (ranks_ && options_.existing != Existing::replace) {
    const std::array<uint64_t, 1> is_there = {there ? 1u : 0u};
    PENSTOCK_TRY(expect_same(*ranks_, "whether its store is there", is_there));
  }
  if (options_.existing == Existing::open && !there) {
    return Status(Code::kUsage, text("open: no store in ", options_.drives.front()), "create it first");
  }
  if (options_.existing == Existing::create && there) {
    return Status(Code::kUsage, text("open: a store is in ", options_.drives.front(), " already"),
                  "open it, replace it, or name another folder");
  }
  return Status();
}

RankedOptions EmbeddedEngine::ranked() const {
  using Sharing = EmbeddedOptions::Sharing;
  return {.engine = engine_options_,
          .group_ranks = options_.sharing == Sharing::nothing ? 1 : options_.place.ranks,
          .keeps_weights = options_.sharing == Sharing::state};
}

Status EmbeddedEngine::create(aio::CreateOptions::Existing existing) {
  const auto initial = [this](uint32_t unit, uint64_t first, std::span<float> values) {
    return initial_values(unit, first, values);
  };
  if (ranks_) return RankedEngine::create(ranked(), *ranks_, initial, existing);
  return Engine::create(engine_options_, initial, existing);
}

Status EmbeddedEngine::open_store() {
  if (ranks_) {
    PENSTOCK_TRY_ASSIGN(engine, RankedEngine::open(ranked(), *ranks_));
    engine_ = std::move(engine);
    return Status();
  }
  PENSTOCK_TRY_ASSIGN(engine, Engine::open(engine_options_));
  alone_ = engine.get();
  engine_ = std::move(engine);
  return Status();
}

Status EmbeddedEngine::refuse_of_ranks(const char* verb) const {
  if (alone_ != nullptr) return Status();
  return Status(Code::kUsage, text(verb, ": not implemented for several ranks, and there are ", options_.place.ranks),
                "give what training begins with where the store is made");
}

Status EmbeddedEngine::initial_values(uint32_t unit, uint64_t first, std::span<float> values) {
  std::fill(values.begin(), values.end(), 0.0f);
  for (uint32_t number : model_.of_unit[unit]) {
    const EmbeddedParameter& parameter = shape(number);
    const uint64_t begins = model_.places[number].first_element;
    const uint64_t from = std::max(first, begins), to = std::min(first + values.size(), begins + parameter.elements);
    if (from >= to) continue;
    const std::span<float> run = values.subspan(from - first, to - from);
    if (parameter.initial != nullptr) {
      kernels_.cast(parameter.dtype, parameter.initial + (from - begins) * bytes_of(parameter.dtype), Dtype::fp32,
                    bytes_at(run.data()), run.size());
    } else if (options_.initial) {
      PENSTOCK_TRY(options_.initial(number, from - begins, run));
    }
  }
  return Status();
}

// -- a step -----------------------------------------------------------------------------------------------------------

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
    PENSTOCK_TRY(read(number, Role::weight, first, here, Dtype::fp32, bytes_at(masters.data())));
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

// -- between steps ----------------------------------------------------------------------------------------------------

Status EmbeddedEngine::check_run(const char* verb, uint32_t parameter, uint64_t first, uint64_t count) const {
  PENSTOCK_TRY(check(verb, parameter));
  const uint64_t elements = shape(parameter).elements;
  if (first <= elements && count <= elements - first) return Status();
  return Status(Code::kUsage, text(verb, ": ", count, " values from ", first, " on of parameter ",
                                   shape(parameter).name, ", which has ", elements));
}

Status EmbeddedEngine::read(uint32_t parameter, Role role, uint64_t first, uint64_t count, Dtype dtype,
                            std::byte* values) {
  PENSTOCK_TRY(check_run("read", parameter, first, count));
  const EmbeddedModel::Place& place = model_.places[parameter];
  const uint64_t begins = place.first_element + first;
  if (dtype == Dtype::fp32) return engine_->read(place.id.unit, role, begins, {values, count * sizeof(float)});
  std::vector<float> run(std::min(count, kRunElements));
  for (uint64_t done = 0; done < count; done += run.size()) {
    const uint64_t here = std::min<uint64_t>(run.size(), count - done);
    PENSTOCK_TRY(engine_->read(place.id.unit, role, begins + done, std::as_writable_bytes(std::span(run).first(here))));
    kernels_.cast(Dtype::fp32, bytes_at(run.data()), dtype, values + done * bytes_of(dtype), here);
  }
  return Status();
}

Status EmbeddedEngine::write(uint32_t parameter, Role role, uint64_t first, uint64_t count, Dtype dtype,
                             const std::byte* values) {
  PENSTOCK_TRY(refuse_of_ranks("write"));
  PENSTOCK_TRY(check_run("write", parameter, first, count));
  const EmbeddedModel::Place& place = model_.places[parameter];
  const uint64_t begins = place.first_element + first;
  if (dtype == Dtype::fp32) return alone_->write(place.id.unit, role, begins, {values, count * sizeof(float)});
  std::vector<float> run(count);  // all of it, or nothing, becomes durable
  kernels_.cast(dtype, values, Dtype::fp32, bytes_at(run.data()), count);
  return alone_->write(place.id.unit, role, begins, std::as_bytes(std::span(run)));
}

Status EmbeddedEngine::check_weights(uint32_t parameter, EmbeddedParameter::Weights weights) const {
  if (!weights.out || options_.weights_out) return Status();
  return Status(Code::kUsage,
                text("parameter ", shape(parameter).name, ": PENSTOCK_WEIGHTS_OUT, and no function weights_out"),
                "give penstock_options.weights_out");
}

Status EmbeddedEngine::begin_writes() {
  PENSTOCK_TRY(refuse_of_ranks("begin writes"));
  return alone_->begin_writes();
}

Status EmbeddedEngine::end_writes() {
  PENSTOCK_TRY(refuse_of_ranks("end writes"));
  return alone_->end_writes();
}

Status EmbeddedEngine::set_weights(uint32_t parameter, Dtype dtype, EmbeddedParameter::Weights weights) {
  if (weights != EmbeddedParameter::Weights()) PENSTOCK_TRY(refuse_of_ranks("weights into"));
  PENSTOCK_TRY(check("weights into", parameter));
  PENSTOCK_TRY(check_weights(parameter, weights));
  EmbeddedParameter& target = options_.parameters[parameter];
  if (target.dtype == dtype && target.weights == weights) return Status();
  if (in_step_) return Status(Code::kUsage, "weights into: called inside a step");
  if (options_.settings.whole_steps) PENSTOCK_TRY(engine_->finish());
  target.dtype = dtype;
  target.weights = weights;
  return Status();
}

Result<uint64_t> EmbeddedEngine::adopt(uint32_t parameter, uint64_t begins, uint64_t count, Dtype dtype,
                                       const std::byte* weights) {
  PENSTOCK_TRY(refuse_of_ranks("adopt"));
  PENSTOCK_TRY(check_run("adopt", parameter, begins, count));
  const uint64_t size = bytes_of(dtype);
  std::vector<float> masters(std::min(count, kRunElements)), given(masters.size());
  std::vector<std::byte> rounded(masters.size() * size);
  uint64_t changed = 0;
  for (uint64_t done = 0; done < count; done += masters.size()) {
    const uint64_t here = std::min<uint64_t>(masters.size(), count - done), first = begins + done;
    PENSTOCK_TRY(read(parameter, Role::weight, first, here, Dtype::fp32, bytes_at(masters.data())));
    kernels_.cast(Dtype::fp32, bytes_at(masters.data()), dtype, rounded.data(), here);
    const std::byte* there = weights + done * size;
    if (std::memcmp(rounded.data(), there, here * size) == 0) continue;
    kernels_.cast(dtype, there, Dtype::fp32, bytes_at(given.data()), here);
    for (uint64_t i = 0; i < here; ++i) {
      if (std::memcmp(rounded.data() + i * size, there + i * size, size) == 0) continue;
      masters[i] = given[i];
      ++changed;
    }
    PENSTOCK_TRY(write(parameter, Role::weight, first, here, Dtype::fp32, bytes_at(masters.data())));
  }
  return changed;
}

Result<uint64_t> EmbeddedEngine::count(uint32_t parameter) {
  PENSTOCK_TRY(refuse_of_ranks("count"));
  PENSTOCK_TRY(check("count", parameter));
  return alone_->update_count(model_.places[parameter].id);
}

Status EmbeddedEngine::set_count(uint32_t parameter, uint64_t count) {
  PENSTOCK_TRY(refuse_of_ranks("set count"));
  PENSTOCK_TRY(check("count", parameter));
  return alone_->write_update_count(model_.places[parameter].id, count);
}

Result<uint64_t> EmbeddedEngine::keep() {
  PENSTOCK_TRY(engine_->settle());
  PENSTOCK_TRY(kept_->keep(engine_->steps_done(), {engine_->runs_of_durable_step()}).status());
  return engine_->steps_done();
}

Status EmbeddedEngine::roll_back(uint64_t step) {
  PENSTOCK_TRY(kept_->check(step));
  PENSTOCK_TRY(engine_->settle());  // refused within a step
  alone_ = nullptr;
  engine_.reset();
  const Status restored = kept_->restore(step);
  // What is there is opened in either case.
  reported_ = DriveBytes();
  PENSTOCK_TRY(open_store());
  return restored;
}

}  // namespace penstock::engine
