// Standard input, output and error may be closed when a program begins. Their numbers would then be those of the first
// files that it opens, and what is printed would go there.
#pragma once

namespace penstock::tools {

// Takes the numbers of those that are closed: nothing is read there, and writing fails as before. Called first by main.
void hold_standard_streams();

}  // namespace penstock::tools
