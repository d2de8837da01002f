// From when on a step must survive a crash.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

struct Durability {
  enum class Kind : uint8_t { step, every, exit } kind = Kind::step;
  uint32_t steps = 1;  // of `every`

  bool durable_after(uint64_t step) const { return kind == Kind::step || (kind == Kind::every && step % steps == 0); }
  // Of many steps.
  double durable_share() const { return kind == Kind::step ? 1 : kind == Kind::every ? 1.0 / steps : 0; }
};

// "step", "every:3" or "exit".
std::string text_of(const Durability& durability);

}  // namespace penstock
