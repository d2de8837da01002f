// EngineWorld: drives in memory, a model of random weights and gradients, and the plain loop beside the engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/memory_drives.h"
#include "tools/update/plain_loop.h"

namespace penstock::engine {

// What a unit gets in a step: its gradients, or the word that it has none.
enum class Given { gradients, skip, zero };

// The plain loop's state after some steps.
struct PlainModel {
  std::vector<plain::Unit> units;
  uint64_t updates = 0;
};

class EngineWorld {
 public:
  explicit EngineWorld(uint64_t seed, uint32_t drives = 2,
                       std::vector<uint64_t> unit_elements = {200'000, 65'536, 131'073});

  Status create(aio::CreateOptions::Existing existing = aio::CreateOptions::Existing::refuse);

  // Of every step another, on more than one page.
  static std::string trainer_state(uint64_t step);

  // One step of both; `size` scales the gradients.
  Result<StepReport> step(Engine& engine, float size) {
    PENSTOCK_TRY(begin_and_give(engine, size));
    return engine.step(trainer_state(engine.steps_done() + 1));
  }
  // A step up to its end, which step() or discard() is.
  Status begin_and_give(Engine& engine, float size);
  // All of a unit's gradients, or the word that there are none; nothing where it is frozen.
  Status give(Engine& engine, uint32_t unit, Given what,
              const std::function<std::vector<uint16_t>(uint32_t mb)>& gradient);
  // Parameter by parameter, the last first; absences are told where they come.
  Status give_parts(Engine& engine, uint32_t unit,
                    const std::function<std::vector<uint16_t>(uint32_t mb)>& gradient) const;
  // A gradient of ones; the plain loop hears nothing of it.
  Status give_ones(Engine& engine, uint32_t unit, uint32_t micro_batch = 0) const;
  void plain_step(uint64_t number, float size);

  // Words of weight, low half, momentum and variance that differ between the engine and the plain loop.
  uint64_t words_different(Engine& engine) { return words_different(engine, plain_); }
  uint64_t words_different(Engine& engine, const PlainModel& model);

  const PlainModel& plain() const { return plain_; }
  PlainModel& plain() { return plain_; }

  EngineOptions options;
  // Of matrices, of norms and biases, and one that differs in everything.
  std::vector<Hyper> groups = {{.lr = 1e-2, .beta2 = 0.95, .weight_decay = 0.1},
                               {.lr = 1e-2, .beta2 = 0.95},
                               {.lr = 3e-3, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.3}};
  plain::Settings settings;
  // Units that have parameters get their gradients parameter by parameter. Set by give_gradients_in_parts().
  bool in_parts = false;
  void give_gradients_in_parts() {
    in_parts = true;
    for (Unit& unit : options.request.workload.units) unit.gradient_in_parts = !unit.parameters.empty();
  }
  std::function<Given(uint64_t step, uint32_t unit, uint32_t parameter)> given_parameter =
      [](uint64_t, uint32_t, uint32_t) { return Given::gradients; };
  uint32_t micro_batches = 1;
  std::vector<uint32_t> unit_order;  // in which gradients come; empty: backward
  std::function<Given(uint64_t step, uint32_t unit)> given = [](uint64_t, uint32_t) { return Given::gradients; };
  std::function<std::unique_ptr<aio::IoBackend>()> make_backend_;

  bool trainable(uint32_t unit) const { return options.request.workload.units[unit].trainable; }
  uint32_t drives() const { return static_cast<uint32_t>(folders_.size()); }
  aio::MemoryFolder& folder(uint32_t drive) const { return *folders_[drive]; }
  // Where the store has a tile's plane now, by drive. REQUIRES: no engine has it open.
  std::vector<StoreLayout::FileRange> pieces_of(TileId tile, Role role) const;

 protected:
  static Absent absent_of(Given what) { return what == Given::skip ? Absent::skip : Absent::zero; }
  const std::vector<Parameter>& parameters(uint32_t unit) const {
    return options.request.workload.units[unit].parameters;
  }
  // Of a unit that has some.
  bool skips_all_parameters(uint64_t step, uint32_t unit) const;
  // What no parameter names and what has no gradient is zero; a skipped parameter's part of the plain loop is absent.
  void leave_parts(uint64_t step, uint32_t unit, std::vector<uint16_t>& gradient);

 private:
  bool gives_parts(uint32_t unit) const { return in_parts && !parameters(unit).empty(); }
  template <typename T>
  void read(Engine& engine, uint32_t unit, Role role, std::vector<T>& values) {
    Status status = engine.read(unit, role, 0, std::as_writable_bytes(std::span(values)));
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // Parameters of all groups, short and long, some with padding behind them, and elements that no parameter names; some
  // begin where a tile of one block does. The plain loop is told where they end in words of its own.
  void cut_into_groups(Unit& unit, plain::Unit& plain);
  float initial_value(uint32_t unit, uint64_t i) const;
  std::vector<float> initial(uint32_t unit, uint64_t elements) const;
  std::vector<uint16_t> gradient(uint64_t step, uint32_t unit, uint32_t mb, float size) const;

  const uint64_t seed_;
  std::vector<std::shared_ptr<aio::MemoryFolder>> folders_;
  PlainModel plain_;
};

}  // namespace penstock::engine
