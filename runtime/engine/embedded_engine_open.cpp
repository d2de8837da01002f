// How EmbeddedEngine meets other ranks, and makes or opens its store.
#include <algorithm>
#include <array>
#include <filesystem>

#include "aio/direct_folder.h"
#include "aio/make_io_engine.h"
#include "runtime/engine/embedded_engine.h"
#include "runtime/engine/ranks/rank_agreement.h"

namespace penstock::engine {
namespace {

Status make_folders(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return errno_status(text("make the folder ", folder), error.value());
  }
  return Status();
}

// A program has no flags.
Status told_to_program(const Status& status) {
  const std::string flag = "raise --budget host=";
  if (!status.remedy().starts_with(flag)) return status;
  return Status(status.code(), status.message(), "raise host_bytes" + status.remedy().substr(flag.size()));
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
  PENSTOCK_TRY(told_to_program(engine->start()));
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

Result<aio::StorePresence> EmbeddedEngine::find_store() const {
  PENSTOCK_TRY_ASSIGN(made, aio::make_io_engine());
  const auto folders = aio::direct_folders(options_.drives, aio::Access::read_only);
  return aio::find_store(*made.engine, folders, options_.place.rank);
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
    request.choices.device_share = 0;  // where the device updates, nobody hears of it
  }
  kept_.emplace(std::vector{KeptSteps(options_.drives, {options_.place.rank, options_.place.ranks})}, ranks_.get());
  PENSTOCK_TRY_ASSIGN(there, look_at_stores());
  if (options_.existing == EmbeddedOptions::Existing::replace || !there.is_whole) {
    if (ranks_) PENSTOCK_TRY(kept_->forget_rollback());
    PENSTOCK_TRY(create(options_.existing == EmbeddedOptions::Existing::replace || there.is_half_made
                            ? aio::Existing::replace
                            : aio::Existing::refuse));
  } else if (ranks_) {
    PENSTOCK_TRY(kept_->finish_rollback().status());
  }
  PENSTOCK_TRY(open_store());
  return kept_->drop_incomplete().status();
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

Result<EmbeddedEngine::Stores> EmbeddedEngine::look_at_stores() const {
  using Existing = EmbeddedOptions::Existing;
  if (options_.existing == Existing::replace) return Stores();
  const Result<aio::StorePresence> here = find_store();
  PENSTOCK_TRY_ASSIGN(all, presence_by_rank(ranks_.get(), here));
  Stores stores{.is_whole = here->kind == aio::StorePresence::Kind::there, .is_half_made = aio::is_half_made(all)};
  if (stores.is_half_made) stores.is_whole = false;
  if (ranks_) {
    const std::array<uint64_t, 1> is_there = {stores.is_whole ? 1u : 0u};
    PENSTOCK_TRY(expect_same(*ranks_, "whether its store is there", is_there));
  }
  if (options_.existing == Existing::open && !stores.is_whole) {
    return Status(Code::kUsage, text("open: no store in ", options_.drives.front()), "create it first");
  }
  if (options_.existing == Existing::create && stores.is_whole) {
    return Status(Code::kUsage, text("open: a store is in ", options_.drives.front(), " already"),
                  "open it, replace it, or name another folder");
  }
  return stores;
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
                    reinterpret_cast<std::byte*>(run.data()), run.size());
    } else if (options_.initial) {
      PENSTOCK_TRY(options_.initial(number, from - begins, run));
    }
  }
  return Status();
}

}  // namespace penstock::engine
