#include "runtime/trainer/torch/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "tiering/buffer.h"
#include "tiering/check.h"

namespace penstock::trainer {
namespace {

constexpr uint64_t kAddressesMost = uint64_t{1} << 40, kAddressesLeast = uint64_t{1} << 32;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kSmallAlignmentBytes = 64;  // as LibTorch's own allocator has it

// Addresses without memory: pages come when they are touched.
std::pair<std::byte*, uint64_t> reserve() {
  for (uint64_t bytes = kAddressesMost; bytes >= kAddressesLeast; bytes /= 2) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1,
                    /*offset=*/0);
    if (at == MAP_FAILED) continue;
    (void)madvise(at, bytes, MADV_HUGEPAGE);  // a hint
    return {static_cast<std::byte*>(at), bytes};
  }
  return {nullptr, 0};
}

}  // namespace

class TensorMemory::Allocator final : public c10::Allocator {
 public:
  Allocator() {
    std::tie(base_, addresses_) = reserve();
    if (base_ == nullptr) return;
    free_[0] = addresses_;
    the_one = this;
    c10::SetCPUAllocator(this, /*priority=*/1);
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : bytes < kSmallBytes ? small(bytes) : large(round_up(bytes, kPageBytes));
    return {data, data, &drop, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  bool installed() const { return base_ != nullptr; }
  void set_limit(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
    beyond_ = 0;
    for (const auto& [begin, size] : used_) beyond_ += begin + size > limit_ ? 1 : 0;
    if (beyond_ > 0) give_back_all();
  }
  uint64_t live() const {
    std::lock_guard lock(mutex_);
    return live_;
  }
  uint64_t peak() const {
    std::lock_guard lock(mutex_);
    return peak_;
  }
  uint64_t touched() const {
    std::lock_guard lock(mutex_);
    return touched_;
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    peak_ = live_;
  }
  void give_back() {
    std::lock_guard lock(mutex_);
    give_back_all();
    const auto last = free_.rbegin();
    if (last != free_.rend() && last->first + last->second == addresses_) touched_ = std::min(touched_, last->first);
  }

 private:
  static void* small(size_t bytes) {
    void* data = std::aligned_alloc(kSmallAlignmentBytes, round_up(bytes, kSmallAlignmentBytes));
    if (data == nullptr) C10_THROW_ERROR(OutOfMemoryError, "host memory is exhausted");
    return data;
  }

  void give_back_run(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    CHECK(madvise(base_ + begin, end - begin, MADV_DONTNEED) == 0, "pages of tensors are given back");
  }
  void give_back_all() {
    for (const auto& [begin, bytes] : free_) give_back_run(begin, std::min(begin + bytes, touched_));
  }

  // The lowest place that is large enough.
  void* large(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    const auto place =
        std::find_if(free_.begin(), free_.end(), [bytes](const auto& run) { return run.second >= bytes; });
    const uint64_t most = std::min(limit_, addresses_);
    if (place == free_.end() || live_ + bytes > most) {
      C10_THROW_ERROR(OutOfMemoryError, text("tensors: ", bytes, " B more than the ", live_, " B there are: ", most,
                                             " B are what the plan has for them"));
    }
    const auto [begin, free_bytes] = *place;
    free_.erase(place);
    if (free_bytes > bytes) free_[begin + bytes] = free_bytes - bytes;
    used_[begin] = bytes;
    if (begin + bytes > limit_ && beyond_++ == 0) give_back_all();
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    touched_ = std::max(touched_, begin + bytes);
    return base_ + begin;
  }

  void free_large(uint64_t begin) {
    std::lock_guard lock(mutex_);
    const auto used = used_.find(begin);
    CHECK(used != used_.end(), "memory of tensors at ", begin, " is freed and was not allocated");
    uint64_t bytes = used->second;
    used_.erase(used);
    live_ -= bytes;
    if (beyond_ > 0) give_back_run(begin, begin + bytes);
    if (begin + bytes > limit_) --beyond_;
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && begin + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        before->second += bytes;
        return;
      }
    }
    free_[begin] = bytes;
  }

  // LibTorch gives an address alone.
  static void drop(void* data) {
    if (data == nullptr) return;
    auto* const at = static_cast<std::byte*>(data);
    if (at >= the_one->base_ && at < the_one->base_ + the_one->addresses_)
      the_one->free_large(static_cast<uint64_t>(at - the_one->base_));
    else
      std::free(data);
  }

  static inline Allocator* the_one = nullptr;

  std::byte* base_ = nullptr;
  uint64_t addresses_ = 0;
  mutable std::mutex mutex_;
  // GUARDED_BY(mutex_)
  uint64_t limit_ = kNoLimit, live_ = 0, peak_ = 0, touched_ = 0;
  uint64_t beyond_ = 0;                          // tensors that end beyond the limit's address
  std::map<uint64_t, uint64_t> free_;            // bytes by where they begin; neighbours are joined
  std::unordered_map<uint64_t, uint64_t> used_;  // likewise
};

TensorMemory::TensorMemory() : allocator_(new Allocator) {}

TensorMemory& TensorMemory::get() {
  // Tensors may be freed after main().
  static auto* memory = new TensorMemory;
  return *memory;
}

bool TensorMemory::installed() const { return allocator_->installed(); }
void TensorMemory::set_limit(uint64_t bytes) { allocator_->set_limit(bytes); }
uint64_t TensorMemory::live_bytes() const { return allocator_->live(); }
uint64_t TensorMemory::peak_bytes() const { return allocator_->peak(); }
void TensorMemory::reset_peak() { allocator_->reset_peak(); }
uint64_t TensorMemory::touched_bytes() const { return allocator_->touched(); }
void TensorMemory::give_back() { allocator_->give_back(); }

}  // namespace penstock::trainer
