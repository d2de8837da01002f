// ProcessorSet is a set of processors, numbered as the scheduler numbers them. It holds as many as Linux can be built
// for, because the kernel refuses a set that is smaller than its own. cpu_set_t holds 1024.
#pragma once

#include <sched.h>

#include <array>
#include <cstddef>

namespace penstock::cpu_optim {

class ProcessorSet {
 public:
  static constexpr int kProcessorsMax = 8192;

  static ProcessorSet of_one(int cpu) {
    ProcessorSet set;
    if (in_range(cpu)) CPU_SET_S(static_cast<size_t>(cpu), kBytes, set.bits());
    return set;
  }
  // The processors that the calling thread may run on. Empty if the system does not say.
  static ProcessorSet allowed() {
    ProcessorSet set;
    if (sched_getaffinity(0, kBytes, set.bits()) != 0) return {};
    return set;
  }
  // Pins the calling thread to the set. Returns whether the system allows it.
  bool pin_this_thread() const { return sched_setaffinity(0, kBytes, bits()) == 0; }

  bool has(int cpu) const { return in_range(cpu) && CPU_ISSET_S(static_cast<size_t>(cpu), kBytes, bits()); }
  int count() const { return CPU_COUNT_S(kBytes, bits()); }

 private:
  static constexpr size_t kBytes = kProcessorsMax / 8;
  static bool in_range(int cpu) { return cpu >= 0 && cpu < kProcessorsMax; }
  cpu_set_t* bits() { return words_.data(); }
  const cpu_set_t* bits() const { return words_.data(); }

  std::array<cpu_set_t, kBytes / sizeof(cpu_set_t)> words_{};
};

}  // namespace penstock::cpu_optim
