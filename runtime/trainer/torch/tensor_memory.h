// TensorMemory is where LibTorch's CPU tensors lie: one run of addresses, filled from the bottom. It has a limit.
//
// LibTorch asks one allocator for all of them, in the whole process, so there is one TensorMemory. Tensors under
// kSmallBytes stay with malloc, which has no holes to leave between them; they are not counted. What kernels of oneDNN
// and MKL take for themselves does not come here either.
//
// A tensor that would be more than the limit is refused: LibTorch throws c10::OutOfMemoryError. Free memory stays with
// the process until give_back(), unless the holes between tensors have pushed one beyond the limit's address: as long
// as there is one, what is free is returned to the system at once. So what is in memory is never more than the limit.
#pragma once

#include <cstdint>
#include <memory>

namespace penstock::trainer {

class TensorMemory {
 public:
  static constexpr uint64_t kSmallBytes = 32 * 1024;
  static constexpr uint64_t kNoLimit = UINT64_MAX;

  // Installs itself with LibTorch when it is called first. Tensors that exist by then stay where they are.
  static TensorMemory& get();

  // False where the system gives no addresses: LibTorch's own allocator goes on, and nothing is counted or refused.
  bool installed() const;

  void set_limit(uint64_t bytes);

  uint64_t live_bytes() const;
  // The most that was live since the last reset.
  uint64_t peak_bytes() const;
  void reset_peak();
  // The highest end of a tensor so far: what of it is in memory, at most.
  uint64_t touched_bytes() const;
  // Returns free memory to the system.
  void give_back();

 private:
  class Allocator;

  TensorMemory();

  Allocator* const allocator_;  // LibTorch keeps it to the end
};

}  // namespace penstock::trainer
