// While a verb runs, the trainer is not away.
#pragma once

#include "runtime/engine/ranks/ranks.h"

namespace penstock::engine {

class InVerb {
 public:
  explicit InVerb(Ranks& ranks) : ranks_(ranks) { ranks_.came(); }
  ~InVerb() { ranks_.went(); }
  InVerb(const InVerb&) = delete;
  InVerb& operator=(const InVerb&) = delete;

 private:
  Ranks& ranks_;
};

}  // namespace penstock::engine
