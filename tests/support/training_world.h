// TrainingWorld: a small model whose every weight counts, trained by the engine pass by pass and by a plain loop. The
// model is y[j] = tanh(x[j] / 2 + sum over elements e with e mod kWidth = j of w[e] c(e)), one such layer for each use,
// with the elements of all of the use's units.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>

#include "tests/support/engine_world.h"
#include "tests/support/plain_codes.h"

namespace penstock::engine {

// A stream of a device, and what puts work on it; or the calling thread, which works at once.
struct WorkStream {
  Stream stream;
  std::function<void(std::function<void()>)> put = [](const std::function<void()>& work) { work(); };
};

class TrainingWorld : public EngineWorld {
 public:
  static constexpr size_t kWidth = 48;
  using Hidden = std::array<float, kWidth>;
  static constexpr uint64_t kInputBytes = 256;  // of a Hidden that is put

  using EngineWorld::EngineWorld;

  // Uses in the order of `names`, each by the numbers of its units.
  void set_uses(const std::vector<std::vector<uint32_t>>& units_of_uses);

  // Before create(): the unit's weights rest in codes.
  void freeze(uint32_t unit, std::optional<BlockCode> code);

  // Of the steps so far: units, and parameters of others, that the engine was told to have no gradient. They are those
  // that `given` and `given_parameter` say, the latter REQUIRES Manner::by_parameter.
  uint64_t absences = 0;

  // What a trainer may do as it likes, without a bit of difference.
  struct Manner {
    bool by_parameter = false;        // gradients of units that have parameters are, last first
    bool leaves_zeros = false;        // of them, those whose gradient is zero are not given
    std::set<uint32_t> without = {};  // units whose gradient is not given
    bool puts = false;                // what backward needs is with the engine, else with the trainer
    // Called before every pass; a refusal ends the step.
    std::function<Status(const ComputePass&)> before_pass = [](const ComputePass&) { return Status(); };
    std::function<void()> before_step = [] {};  // and behind the last pass
  };

  // Bytes that get() gave, and that are not what was put there.
  std::atomic<uint64_t> activation_bytes_different = 0;

  // Passes are computed on the first; gradients are handed over from the second, where there is one.
  WorkStream computing;
  std::optional<WorkStream> giving;

  // Whose gradients are infinite, where there is one.
  std::optional<uint32_t> overflowing_unit;

  // Which of the step's samples micro-batch 0 is: each rank has others.
  uint32_t first_sample = 0;

  // One step by the engine, of `count` micro-batches. `size` scales the loss. Where a device computes, all that touches
  // its memory is put on a stream, and the caller runs ahead of it.
  template <typename AnyEngine>
  Result<StepReport> train(AnyEngine& engine, uint32_t count, float size, const Manner& manner) {
    const uint64_t number = engine.steps_done() + 1;
    PENSTOCK_TRY(engine.begin({.groups = groups, .micro_batches = count, .loss_scale = settings.loss_scale}));
    PENSTOCK_TRY(tell_absences(engine, number));
    struct Flow {
      std::vector<std::vector<Hidden>> inputs;
      std::vector<Hidden> flowing;
    };
    auto flow = std::make_shared<Flow>();
    flow->inputs.assign(uses().size(), std::vector<Hidden>(count));
    flow->flowing.resize(count);
    for (const ComputePass& pass : engine.passes()) {
      PENSTOCK_TRY(manner.before_pass(pass));
      PENSTOCK_TRY_ASSIGN(weights, engine.acquire(pass, computing.stream));
      std::vector<const uint16_t*> views;
      for (const UnitWeights& unit : weights) views.push_back(reinterpret_cast<const uint16_t*>(unit.bytes.data()));
      // The input, and what else a larger model would have made.
      std::vector<std::span<std::byte>> kept;
      const Use& use = uses()[pass.use];
      const bool again = recomputes(engine.plan().activations[pass.use]);
      const uint64_t lengths[] = {sizeof(Hidden), (again ? use.boundary_bytes : use.activation_bytes) - kInputBytes};
      for (size_t i = 0; manner.puts && i < 2; ++i) {
        PENSTOCK_TRY_ASSIGN(bytes,
                            pass.direction == Direction::forward ? engine.put(pass, lengths[i]) : engine.get(pass, i));
        kept.push_back(bytes);
      }
      if (pass.direction == Direction::forward) {
        computing.put([this, flow, pass, views, number, size, kept] {
          Hidden& here = flow->flowing[pass.micro_batch];
          if (pass.use == 0) here = sample(number, first_sample + pass.micro_batch);
          if (kept.empty()) {
            flow->inputs[pass.use][pass.micro_batch] = here;
          } else {
            std::memcpy(kept[0].data(), &here, sizeof here);
            fill_activation(number, pass, kept[1]);
          }
          here = forward(pass.use, here, views);
          const bool is_last = pass.use + 1 == uses().size();
          if (is_last) here = loss_gradient(here, number, first_sample + pass.micro_batch, size);
        });
        PENSTOCK_TRY(engine.release(pass));
        continue;
      }
      auto gradients = std::make_shared<std::vector<std::vector<float>>>();
      for (uint32_t unit : uses()[pass.use].units) gradients->emplace_back(elements(unit));
      computing.put([this, flow, pass, views, number, gradients, kept] {
        Hidden& input = flow->inputs[pass.use][pass.micro_batch];
        if (!kept.empty()) {
          std::memcpy(&input, kept[0].data(), sizeof input);
          activation_bytes_different += bytes_different(number, pass, kept[1]);
        }
        const Hidden output = forward(pass.use, input, views);
        std::vector<std::vector<float>> made = backward(pass.use, output, flow->flowing[pass.micro_batch]);
        for (size_t i = 0; i < made.size(); ++i) std::copy(made[i].begin(), made[i].end(), (*gradients)[i].begin());
      });
      if (giving) {
        auto made = std::make_shared<std::promise<void>>();
        giving->put([made] { made->get_future().wait(); });
        computing.put([made] { made->set_value(); });
      }
      for (size_t i = 0; i < gradients->size(); ++i) {
        const uint32_t unit = uses()[pass.use].units[i];
        if (trainable(unit) && !manner.without.contains(unit))
          PENSTOCK_TRY(give(engine, number, pass, unit, (*gradients)[i], manner));
      }
      // A trainer may use that memory again, at once or, where it has said that gradients stay, behind the release.
      auto use_again = [gradients] {
        for (std::vector<float>& of_unit : *gradients) std::fill(of_unit.begin(), of_unit.end(), 7e7f);
      };
      if (!use.gradients_stay) (giving ? *giving : computing).put(use_again);
      PENSTOCK_TRY(engine.release(pass));
      if (use.gradients_stay) (giving ? *giving : computing).put(use_again);
    }
    manner.before_step();
    return engine.step(trainer_state(number));
  }

  // What the model makes of a sample between steps: `samples` of them pass through each use while it is held.
  static constexpr uint32_t kSamples = 3;
  using Answers = std::array<Hidden, kSamples>;
  template <typename AnyEngine>
  Result<Answers> evaluate(AnyEngine& engine) {
    auto flowing = std::make_shared<Answers>(questions());
    PENSTOCK_TRY(engine.begin_forward());
    for (uint32_t use = 0; use < uses().size(); ++use) {
      const ComputePass pass{Direction::forward, use, 0};
      PENSTOCK_TRY_ASSIGN(weights, engine.acquire(pass, computing.stream));
      std::vector<const uint16_t*> views;
      for (const UnitWeights& unit : weights) views.push_back(reinterpret_cast<const uint16_t*>(unit.bytes.data()));
      computing.put([this, flowing, use, views] {
        for (Hidden& here : *flowing) here = forward(use, here, views);
      });
      PENSTOCK_TRY(engine.release(pass));
    }
    PENSTOCK_TRY(engine.end_forward());
    return *flowing;
  }
  Answers plain_evaluate();

  void plain_train(uint64_t number, uint32_t count, float size);

  // By unit, in bf16: what the samples from first_sample on give.
  std::vector<std::vector<uint16_t>> plain_gradients(uint64_t number, uint32_t count, float size);

  // `untouched`: units without a gradient, as frozen ones are.
  void plain_update(const std::vector<std::vector<uint16_t>>& gradients, const std::set<uint32_t>& untouched);

  static uint16_t bf16_of(float value) {
    const uint32_t bits = plain::bits(value);
    return std::isnan(value) ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  static float float_of(uint16_t half) { return plain::real(uint32_t{half} << 16); }

 private:
  const std::vector<Use>& uses() const { return options.request.workload.uses; }
  uint64_t elements(uint32_t unit) const { return options.request.workload.units[unit].elements; }
  std::vector<std::vector<uint16_t>> plain_weights();
  std::vector<const uint16_t*> views_of(uint32_t use, const std::vector<std::vector<uint16_t>>& weights) const;
  static Answers questions() { return {sample(1, 0), sample(1, 1), sample(2, 0)}; }
  // As of a tied unit: one of its uses has a gradient of what the other has not.
  static bool has_no_gradient(uint32_t use, size_t parameter) { return (use + parameter) % 5 == 0; }

  static void fill_activation(uint64_t step, const ComputePass& pass, std::span<std::byte> bytes);
  static uint64_t bytes_different(uint64_t step, const ComputePass& pass, std::span<const std::byte> bytes);
  static Hidden sample(uint64_t step, uint32_t mb);
  static Hidden loss_gradient(const Hidden& y, uint64_t step, uint32_t mb, float size);
  Hidden forward(uint32_t use, const Hidden& x, const std::vector<const uint16_t*>& weights) const;
  // Of each unit of the use; `d` goes in as the gradient of the output and comes out as that of the input.
  std::vector<std::vector<float>> backward(uint32_t use, const Hidden& output, Hidden& d) const;
  // Before the first pass.
  template <typename AnyEngine>
  Status tell_absences(AnyEngine& engine, uint64_t number) {
    for (uint32_t unit = 0; unit < plain().units.size(); ++unit) {
      if (!trainable(unit)) continue;
      if (const Given what = given(number, unit); what != Given::gradients) {
        ++absences;
        PENSTOCK_TRY(engine.absent_gradient(unit, absent_of(what)));
        continue;
      }
      for (uint32_t i = 0; i < parameters(unit).size(); ++i) {
        const Given what = given_parameter(number, unit, i);
        if (what == Given::gradients) continue;
        ++absences;
        PENSTOCK_TRY(engine.absent_gradient(ParameterId{unit, i}, absent_of(what)));
      }
    }
    return Status();
  }
  template <typename AnyEngine>
  Status give(AnyEngine& engine, uint64_t number, const ComputePass& pass, uint32_t unit,
              const std::vector<float>& values, const Manner& manner) const {
    if (given(number, unit) != Given::gradients) return Status();
    auto give_run = [&](uint64_t first, uint64_t count) {
      const std::span<const float> run(values.data() + first, count);
      return engine.gradient({.unit = unit, .micro_batch = pass.micro_batch, .use = pass.use, .first_element = first},
                             Dtype::fp32, std::as_bytes(run), giving ? std::optional(giving->stream) : std::nullopt);
    };
    if (!manner.by_parameter || parameters(unit).empty()) return give_run(0, values.size());
    for (uint32_t i = static_cast<uint32_t>(parameters(unit).size()); i-- > 0;) {
      if (manner.leaves_zeros && has_no_gradient(pass.use, i)) continue;
      if (given_parameter(number, unit, i) != Given::gradients) continue;
      PENSTOCK_TRY(give_run(parameters(unit)[i].first_element, parameters(unit)[i].elements));
    }
    return Status();
  }
};

}  // namespace penstock::engine
