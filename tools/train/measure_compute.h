// `penstock-trainer measure`: how fast LibTorch computes a block here, for `penstock doctor --measure`.
#pragma once

#include "tools/penstock/verb.h"

namespace penstock::tools {

Verb measure_verb();

}  // namespace penstock::tools
