// MovingWeights: a model's weights in plain memory that behaves as badly as an engine may. Between a release and the
// next acquire they lie elsewhere, and where they lay is full of NaN.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "runtime/trainer/engine_verbs.h"
#include "runtime/trainer/model.h"
#include "runtime/trainer/torch/host_accelerator.h"

namespace penstock::trainer {

class MovingWeights final : public EngineVerbs {
 public:
  using GradientKey = std::tuple<uint32_t, uint32_t, uint32_t, uint64_t>;  // use, micro-batch, unit, first element

  explicit MovingWeights(const Model& model) : model_(model) {
    for (const ModelUnit& unit : model.units) weights_.emplace_back(unit.elements * bytes_of(model.dtype));
  }

  Accelerator& accelerator() override { return accelerator_; }
  std::vector<std::byte>& weights(uint32_t unit) { return weights_.at(unit); }

  Result<std::vector<UnitWeights>> acquire(const ComputePass& pass) override {
    if (held_) return Status(Code::kUsage, "acquired twice");
    held_ = pass;
    ++acquired_;
    std::vector<UnitWeights> lent;
    for (uint32_t unit : model_.uses.at(pass.use).units) {
      const std::vector<std::byte>& source = weights_.at(unit);
      // A new place each time: what was lent before is still allocated.
      memory_.push_back({std::make_unique<std::byte[]>(source.size() + 256), source.size() + 256});
      void* place = memory_.back().bytes.get();
      size_t room = source.size() + 256;
      auto* data = static_cast<std::byte*>(std::align(256, source.size(), place, room));
      std::memcpy(data, source.data(), source.size());
      lent.push_back({unit, model_.units[unit].elements, {data, source.size()}});
    }
    return lent;
  }

  Status release(const ComputePass& pass) override {
    if (!held_ || *held_ != pass) return Status(Code::kUsage, "released without having been acquired");
    held_.reset();
    for (Memory& memory : memory_) std::memset(memory.bytes.get(), 0xff, memory.size);
    while (memory_.size() > 8) memory_.pop_front();
    return Status();
  }

  Status gradient(const ComputePass& pass, uint32_t unit, uint64_t first_element, Dtype dtype,
                  std::span<const std::byte> values) override {
    if (!held_ || *held_ != pass || pass.direction != Direction::backward)
      return Status(Code::kUsage, "a gradient outside of its use's backward");
    const GradientKey key{pass.use, pass.micro_batch, unit, first_element};
    if (!gradients_.emplace(key, std::vector<std::byte>(values.begin(), values.end())).second)
      return Status(Code::kUsage, "a gradient twice");
    dtypes_[key] = dtype;
    return Status();
  }

  Status put(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<const std::byte> bytes) override {
    if (refuse_put_after_ == 0) return Status(Code::kEnvironment, "no room for activations");
    if (refuse_put_after_ > 0) --refuse_put_after_;
    put_bytes_ += bytes.size();
    put_[{use, micro_batch, index}].assign(bytes.begin(), bytes.end());
    return Status();
  }

  Status get(uint32_t use, uint32_t micro_batch, uint32_t index, std::span<std::byte> into) override {
    const auto found = put_.find({use, micro_batch, index});
    if (found == put_.end()) return Status(Code::kUsage, "nothing was put there");
    if (found->second.size() != into.size()) return Status(Code::kUsage, "another size was put there");
    std::memcpy(into.data(), found->second.data(), into.size());
    put_.erase(found);
    return Status();
  }

  const Model& model_;
  std::vector<std::vector<std::byte>> weights_;
  std::map<GradientKey, std::vector<std::byte>> gradients_;
  std::map<GradientKey, Dtype> dtypes_;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, std::vector<std::byte>> put_;
  uint64_t put_bytes_ = 0, acquired_ = 0;
  int64_t refuse_put_after_ = -1;  // never

 private:
  HostAccelerator accelerator_;
  struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };
  std::optional<ComputePass> held_;
  std::deque<Memory> memory_;
};

}  // namespace penstock::trainer
