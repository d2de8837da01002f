// `penstock generate`: what a run's model answers as it is now.
#pragma once

#include "tools/penstock/command.h"
#include "tools/penstock/train_flags.h"

namespace penstock::tools {

Result<Answer> generate(Session& session, const GenerateFlags& flags);

}  // namespace penstock::tools
