#include "runtime/trainer/torch/saved_tensors.h"

#include "runtime/trainer/torch/autograd.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <stdexcept>

#include "tiering/check.h"

namespace penstock::trainer {
namespace {

thread_local SavedTensors* recording = nullptr;

}  // namespace

// One saved tensor: a weight's place, an activation, or a view of a storage that is with the engine.
class SavedTensorHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedTensorHooks(SavedTensors& saved) : saved_(saved.shared_from_this()) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    weight_ = saved_->place_of(tensor);
    // A device's kernels save numbers in host memory too.
    const bool is_elsewhere = tensor.device() != saved_->engine_.accelerator().device();
    if (!weight_ && (saved_->keeping_ == Keeping::in_memory || tensor.numel() == 0 || is_elsewhere)) {
      tensor_ = tensor.detach();
      return;
    }
    sizes_ = tensor.sizes().vec();
    strides_ = tensor.strides().vec();
    offset_ = tensor.storage_offset();
    options_ = tensor.options();
    if (!weight_) stored_ = saved_->put(tensor);
  }

  at::Tensor call_unpack_hook() override {
    if (weight_) {
      auto* data = const_cast<std::byte*>(saved_->address_of(*weight_));
      return at::from_blob(data, sizes_, strides_, /*storage_offset=*/0, /*deleter=*/{}, options_, options_.device());
    }
    if (tensor_.defined()) return tensor_;
    at::Tensor tensor = at::empty({0}, options_);
    tensor.set_(saved_->get(stored_), offset_, sizes_, strides_);
    return tensor;
  }

 private:
  const std::shared_ptr<SavedTensors> saved_;
  std::optional<SavedTensors::WeightPlace> weight_;
  at::Tensor tensor_;
  uint32_t stored_ = 0;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
  at::TensorOptions options_;
};

namespace {

// LibTorch asks its autograd engine for the hooks of saved tensors; in Python these are torch's own.
class HookedEngine final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return recording == nullptr ? nullptr : std::make_unique<SavedTensorHooks>(*recording);
  }
  // Autograd ends threads of its own after main(), so the engine must outlive it.
  static torch::autograd::Engine& get() {
    static auto* engine = new HookedEngine;
    return *engine;
  }
};

}  // namespace

void hook_autograd() {
  static const bool once = [] {
    torch::autograd::set_default_engine_stub(&HookedEngine::get);
    return true;
  }();
  (void)once;
}

SavedTensors::SavedTensors(Keeping keeping, EngineVerbs& engine, uint32_t use, uint32_t micro_batch)
    : keeping_(keeping), engine_(engine), use_(use), micro_batch_(micro_batch) {
  hook_autograd();
}

void SavedTensors::lend(std::span<const UnitWeights> weights) { lent_.assign(weights.begin(), weights.end()); }

void SavedTensors::take_back() {
  for (UnitWeights& unit : lent_) unit.bytes = {};
}

std::optional<SavedTensors::WeightPlace> SavedTensors::place_of(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return std::nullopt;
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  for (size_t i = 0; i < lent_.size(); ++i) {
    const std::span<const std::byte> there = lent_[i].bytes;
    if (!there.empty() && data >= there.data() && data < there.data() + there.size())
      return WeightPlace{i, static_cast<uint64_t>(data - there.data())};
  }
  return std::nullopt;
}

const std::byte* SavedTensors::address_of(const WeightPlace& place) const {
  CHECK(!lent_[place.lent].bytes.empty(), "backward of use ", use_, " needs weights that are not lent to it");
  return lent_[place.lent].bytes.data() + place.offset_bytes;
}

uint32_t SavedTensors::put(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const uint32_t version = static_cast<uint32_t>(tensor._version());
  for (uint32_t index = 0; index < storages_.size(); ++index) {
    Stored& stored = storages_[index];
    if (stored.origin._unsafe_get_target() == storage.unsafeGetStorageImpl() && stored.version == version) {
      ++stored.views_left;
      return index;
    }
  }
  const auto index = static_cast<uint32_t>(storages_.size());
  const auto* data = static_cast<const std::byte*>(storage.data());
  if (status_ = engine_.put(use_, micro_batch_, index, {data, storage.nbytes()}); !status_.ok())
    throw std::runtime_error(status_.message());
  storages_.push_back({.origin = storage.getWeakStorageImpl(),
                       .version = version,
                       .bytes = storage.nbytes(),
                       .views_left = 1,
                       .returned = std::nullopt});
  return index;
}

c10::Storage SavedTensors::get(uint32_t index) {
  Stored& stored = storages_[index];
  if (!stored.returned) {
    at::Tensor memory = at::empty({static_cast<int64_t>(stored.bytes)},
                                  at::TensorOptions(at::kByte).device(engine_.accelerator().device()));
    auto* data = static_cast<std::byte*>(memory.mutable_data_ptr());
    if (status_ = engine_.get(use_, micro_batch_, index, {data, stored.bytes}); !status_.ok())
      throw std::runtime_error(status_.message());
    stored.returned = memory.storage();
  }
  c10::Storage storage = *stored.returned;
  if (--stored.views_left == 0) stored.returned.reset();
  return storage;
}

SavedTensors::Recording::Recording(SavedTensors& saved) {
  CHECK(recording == nullptr, "one forward is recorded at a time");
  recording = &saved;
}

SavedTensors::Recording::~Recording() { recording = nullptr; }

}  // namespace penstock::trainer
