// PublishedWeights gives a program the weights that a step has made, rounded to the dtype that it keeps: into memory of
// its own, or piece by piece to a function of its own. Nothing is given before the program allows it, since its
// backward may still look at the old ones: what updates have made until then is noted, and read from the store when the
// step has ended.
//
// offer() is called on update threads, several at a time; all else by the thread that drives the step.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "cpu_optim/gradient.h"
#include "runtime/engine/embedded_model.h"

namespace penstock::engine {

class PublishedWeights {
 public:
  // `bytes`: a parameter's values, from element `first` on, in its dtype; to be read before it returns. By one thread
  // at a time. After a refusal nothing more is given.
  using Out = std::function<Status(uint32_t parameter, uint64_t first, Dtype dtype, std::span<const std::byte> bytes)>;

  // At most so many elements at once.
  static constexpr uint64_t kPieceElements = 1 << 20;

  // `parameters` outlive it; where their weights go may change between steps.
  PublishedWeights(std::span<const EmbeddedParameter> parameters, const Out& out);

  bool wanted(uint32_t parameter) const { return parameters_[parameter].weights != EmbeddedParameter::Weights(); }
  bool any_wanted() const;

  // A step begins: nothing may be given.
  void begin();
  void allow() { allowed_ = true; }
  // A parameter's new masters, from element `first` on. REQUIRES: wanted(parameter).
  void offer(uint32_t parameter, uint64_t first, std::span<const std::byte> masters);
  // The same, allowed or not.
  void give(uint32_t parameter, uint64_t first, std::span<const std::byte> masters);
  // Since begin(): parameters of which something was offered too early, and those of which something was given.
  std::vector<uint32_t> missed() const { return noted(kMissed); }
  std::vector<uint32_t> given() const { return noted(kGiven); }
  // The first refusal of the program's function.
  Status status();

 private:
  enum Note : uint8_t { kMissed = 1, kGiven = 2 };
  std::vector<uint32_t> noted(Note note) const;
  void hand_out(uint32_t parameter, uint64_t first, std::span<const std::byte> masters);

  const std::span<const EmbeddedParameter> parameters_;
  const Out out_;
  const cpu_optim::GradientKernels kernels_;
  std::atomic<bool> allowed_ = false;
  std::vector<std::atomic<uint8_t>> notes_;  // by parameter

  std::mutex handing_out_;  // guards what follows, and calls of out_
  std::vector<std::byte> rounded_;
  Status status_;
};

}  // namespace penstock::engine
