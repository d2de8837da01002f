// EmbeddedEngine drives an Engine, or a RankedEngine, by parameter, for programs that know nothing of units and tiles:
// what penstock.h offers, in C++. The rules are those of penstock.h; who may call, and when, too.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/store/store_presence.h"
#include "cpu_optim/gradient.h"
#include "runtime/engine/embedded_model.h"
#include "runtime/engine/published_weights.h"
#include "runtime/engine/ranks/kept_together.h"
#include "runtime/engine/ranks/ranked_engine.h"

namespace penstock::engine {

struct EmbeddedOptions {
  enum class Existing { open_or_create, open, create, replace };
  enum class Sharing { weights, state, nothing };

  std::vector<std::string> drives;
  std::vector<EmbeddedParameter> parameters;
  EmbeddedSettings settings;
  Existing existing = Existing::open_or_create;
  Durability durability;
  uint64_t host_bytes = 0;
  uint32_t slots = 0;
  uint32_t threads = 0;
  uint64_t initial_step = 0;  // EngineOptions::initial_step
  // Of parameters that have no initial values of their own; empty: zeros.
  std::function<Status(uint32_t parameter, uint64_t first, std::span<float> values)> initial;
  PublishedWeights::Out weights_out;  // of parameters whose weights go out
  RankPlace place = {};
  Sharing sharing = Sharing::weights;
  std::chrono::milliseconds hangs_after = RanksOptions().hangs_after;
};

class EmbeddedEngine {
 public:
  static Result<std::unique_ptr<EmbeddedEngine>> open(EmbeddedOptions options);
  ~EmbeddedEngine();
  // Makes the last step durable; nothing but destruction may follow.
  Status close();

  Status begin(const std::vector<Hyper>& groups, uint32_t micro_batches, double loss_scale);
  Status gradient(uint32_t parameter, uint32_t micro_batch, Dtype dtype, const std::byte* values);
  Status gradient_part(uint32_t parameter, uint32_t micro_batch, uint64_t first, uint64_t count, Dtype dtype,
                       const std::byte* values);
  Status absent(uint32_t parameter);
  Status publish();
  Result<StepReport> step(std::string trainer_state);
  Status discard();

  std::vector<ComputePass> passes() const { return engine_->passes(); }
  Status acquire(const ComputePass& pass);
  Status release(const ComputePass& pass);
  Result<const float*> weight(uint32_t parameter) const;
  Status begin_forward() { return engine_->begin_forward(); }
  Status end_forward();

  Status read(uint32_t parameter, Role role, uint64_t first, uint64_t count, Dtype dtype, std::byte* values);
  Status write(uint32_t parameter, Role role, uint64_t first, uint64_t count, Dtype dtype, const std::byte* values);
  // How many masters it has changed.
  Result<uint64_t> adopt(uint32_t parameter, uint64_t first, uint64_t count, Dtype dtype, const std::byte* weights);
  Result<uint64_t> count(uint32_t parameter);
  Status set_count(uint32_t parameter, uint64_t count);
  Status settle() { return engine_->settle(); }
  Status begin_writes();
  Status end_writes();
  Status set_weights(uint32_t parameter, Dtype dtype, EmbeddedParameter::Weights weights);

  Result<uint64_t> keep();
  std::vector<uint64_t> kept() const { return kept_->steps(); }
  // EngineState::course of a step that is kept, or that the store is at.
  Result<uint64_t> mark(uint64_t step);
  Status roll_back(uint64_t step);
  Status drop(uint64_t step) { return kept_->drop(step); }

  // A store that could not be opened again after roll_back() leaves nothing to use.
  bool is_open() const { return engine_ != nullptr; }
  // Weights have not reached the program.
  Status failure() { return published_.status(); }
  const StepEngine& engine() const { return *engine_; }
  const RankPlace& place() const { return options_.place; }
  const EmbeddedModel& model() const { return model_; }
  // Of all parameters.
  uint64_t elements() const;

 private:
  static constexpr uint64_t kRunElements = 1 << 20;  // converted at once

  enum class Got : uint8_t { nothing, gradient, absent };

  EmbeddedEngine(EmbeddedOptions options, EmbeddedModel model);
  Status start();
  Status check_ranks() const;
  Status meet_others();
  struct Stores {
    bool is_whole = false;      // this rank's is there
    bool is_half_made = false;  // the making of all ranks' was cut short
  };
  // Refused where they are not what Existing asks for.
  Result<Stores> look_at_stores() const;
  Status create(aio::CreateOptions::Existing existing);
  Status open_store();
  RankedOptions ranked() const;
  // Of what an engine of one process alone does.
  Status refuse_of_ranks(const char* verb) const;
  Status check(const char* verb, uint32_t parameter) const;
  Status check_weights(uint32_t parameter, EmbeddedParameter::Weights weights) const;
  Status expect_whole(const std::string& verb) const;
  Status check_run(const char* verb, uint32_t parameter, uint64_t first, uint64_t count) const;
  const EmbeddedParameter& shape(uint32_t parameter) const { return options_.parameters[parameter]; }
  // Whether nothing had been noted of it.
  bool note(uint32_t parameter, Got got);
  Result<aio::StorePresence> find_store() const;
  Status initial_values(uint32_t unit, uint64_t first, std::span<float> values);
  void updated(uint32_t unit, uint64_t first, std::span<const std::byte> weights);
  Status publish_from_store(const std::vector<uint32_t>& parameters);
  Status publish_from_store(uint32_t parameter);

  EmbeddedOptions options_;
  const EmbeddedModel model_;
  const cpu_optim::GradientKernels kernels_;
  PublishedWeights published_;
  EngineOptions engine_options_;
  std::unique_ptr<Ranks> ranks_;  // where there are several
  std::optional<KeptTogether> kept_;
  std::unique_ptr<StepEngine> engine_;
  Engine* alone_ = nullptr;  // that engine, where it is of one process
  // What each parameter has got in the step that has begun. Update threads read an entry as soon as a part of its
  // gradient may be updated, so that only the first word about a parameter is noted.
  std::vector<Got> got_;
  // The one whose gradient has come in part.
  struct Arriving {
    uint32_t parameter = 0, micro_batch = 0;
    uint64_t next = 0;
  };
  std::optional<Arriving> arriving_;
  bool in_step_ = false;
  std::chrono::steady_clock::time_point began_;
  DriveBytes reported_;  // up to the last report
  std::optional<ComputePass> acquired_;
  const std::byte* unit_weights_ = nullptr;
};

}  // namespace penstock::engine
