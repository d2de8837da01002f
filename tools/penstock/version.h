// The command's tagline and version.
#pragma once

namespace penstock::tools {

constexpr const char* kVersion = PENSTOCK_VERSION;
constexpr const char* kTagline = "Trains models whose state is far larger than GPU memory";

}  // namespace penstock::tools
