// What trains is a program of its own, which stands on LibTorch: where it is, and how the command starts it.
#pragma once

#include <string>

#include "tools/penstock/verb.h"

namespace penstock::tools {

// penstock-trainer, which stands beside the command. Refused by a build that has none; `verb` asks.
Result<std::string> trainer_path(const std::string& verb);

// Between two products OpenMP's threads would spin, and keep the updates and the decision thread from the processors.
// (GPT of 25M on two cores beside compilers: 10.2 s a step spinning, 1.3 to 1.9 s waiting.)
void let_trainer_threads_wait();

// Starts it with the command's own arguments; with `ranks`, so many of them, unless a launcher has. Returns only if the
// trainer could not be started: else the command ends with it.
Status start_trainer(Session& session, const std::string& verb, uint64_t ranks = 1);

}  // namespace penstock::tools
