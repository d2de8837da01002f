// SavedTensors: what the recorded forward of one use and micro-batch leaves for its backward, without a raw view of
// memory that is only lent.
//
// While a Recording exists, what autograd saves on this thread comes here. A weight is kept as {unit, offset, shape}
// and found again where it lies in backward. An activation stays in memory, or its storage goes to the engine once,
// however many views of it are saved, and comes back when the first of them is needed.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/trainer/engine_verbs.h"

namespace penstock::trainer {

// Gives autograd the hooks, by an engine of our own. LibTorch starts its devices' threads for one engine alone, the
// first that goes back: so this is called before anything does.
void hook_autograd();

class SavedTensors : public std::enable_shared_from_this<SavedTensors> {
 public:
  // `engine` is used where they are kept with it, and outlives this.
  SavedTensors(Keeping keeping, EngineVerbs& engine, uint32_t use, uint32_t micro_batch);

  // Where the weights lie from now on, until take_back(). The same units each time.
  void lend(std::span<const UnitWeights> weights);
  void take_back();

  // The engine's first refusal. Forward or backward that was under way ended with an exception.
  const Status& status() const { return status_; }

  class Recording {
   public:
    explicit Recording(SavedTensors& saved);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
  };

 private:
  friend class SavedTensorHooks;

  // One storage that is with the engine, from its first save to its last need.
  struct Stored {
    c10::weak_intrusive_ptr<c10::StorageImpl> origin;  // alone tells whether another view is of the same storage
    uint32_t version = 0;
    uint64_t bytes = 0;
    uint32_t views_left = 0;
    std::optional<c10::Storage> returned;
  };
  struct WeightPlace {
    size_t lent = 0;
    uint64_t offset_bytes = 0;
  };

  std::optional<WeightPlace> place_of(const at::Tensor& tensor) const;
  const std::byte* address_of(const WeightPlace& place) const;
  uint32_t put(const at::Tensor& tensor);
  c10::Storage get(uint32_t index);

  const Keeping keeping_;
  EngineVerbs& engine_;
  const uint32_t use_, micro_batch_;
  std::vector<UnitWeights> lent_;
  std::vector<Stored> storages_;
  Status status_;
};

}  // namespace penstock::trainer
