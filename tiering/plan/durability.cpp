#include "tiering/plan/durability.h"

#include "tiering/status.h"

namespace penstock {

std::string text_of(const Durability& durability) {
  if (durability.kind == Durability::Kind::step) return "step";
  if (durability.kind == Durability::Kind::exit) return "exit";
  return text("every:", durability.steps);
}

}  // namespace penstock
