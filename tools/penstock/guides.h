// Guides are pages of the manual that are no verb's: each tells how to do one thing with several verbs. They are
// written by hand in tools/manual, and the command has them with it.
#pragma once

#include <span>

namespace penstock::tools {

struct Guide {
  const char* name;  // "ranks"
  const char* page;  // in roff
};

std::span<const Guide> guides();

}  // namespace penstock::tools
