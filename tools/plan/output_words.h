// What each line that a forecast prints says, for the manual page.
#pragma once

#include <vector>

#include "tools/penstock/output_word.h"

namespace penstock::tools {

const std::vector<OutputWord>& words_of_forecasts();

}  // namespace penstock::tools
