// What the command is and which version of it this is.
#pragma once

namespace penstock::tools {

constexpr const char* kVersion = PENSTOCK_VERSION;
constexpr const char* kTagline = "Trains models whose state is far larger than GPU memory";

}  // namespace penstock::tools
