// StoreLink is the EngineVerbs of passes that change nothing over stores that no engine has opened, such as those of
// several ranks: weights come from them use by use, and stay where there is room.
#pragma once

#include <map>

#include "runtime/trainer/torch/tensors.h"
#include "tools/penstock/store_weights.h"

namespace penstock::tools {

class StoreLink final : public trainer::EngineVerbs {
 public:
  // Units stay in memory as long as all that stay are no more than `stay_bytes`. All that is named outlives it.
  StoreLink(const trainer::Model& model, StoreWeights& weights, trainer::Accelerator& accelerator, uint64_t stay_bytes)
      : model_(model), weights_(weights), accelerator_(accelerator), stay_bytes_(stay_bytes) {}

  trainer::Accelerator& accelerator() override { return accelerator_; }
  Result<std::vector<trainer::UnitWeights>> acquire(const trainer::ComputePass& pass) override;
  Status release(const trainer::ComputePass& pass) override;

  // Passes go forward alone.
  Status gradient(const trainer::ComputePass&, uint32_t, uint64_t, Dtype, std::span<const std::byte>) override;
  Status put(uint32_t, uint32_t, uint32_t, std::span<const std::byte>) override;
  Status get(uint32_t, uint32_t, uint32_t, std::span<std::byte>) override;

 private:
  struct Held {
    at::Tensor bytes;
    bool stays = false;
  };
  Status bring(uint32_t unit);

  const trainer::Model& model_;
  StoreWeights& weights_;
  trainer::Accelerator& accelerator_;
  const uint64_t stay_bytes_;
  uint64_t staying_bytes_ = 0;
  std::map<uint32_t, Held> held_;  // by unit
};

// The most that the weights of a use take.
uint64_t largest_use_bytes(const trainer::Model& model);

}  // namespace penstock::tools
