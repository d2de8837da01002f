// Starts the part of a verb that is written in Python, which is a package of its own beside the command.
#pragma once

#include <string>

#include "tools/penstock/verb.h"

namespace penstock::tools {

// Becomes `python -m MODULE` with the command's own arguments from the verb's last word on. Returns only where it
// cannot. The Python is that of PENSTOCK_PYTHON, of the source's .venv, or python3; the module itself says what it
// misses there.
Status start_python(Session& session, const std::string& verb, const std::string& module);

// The JSON object that `python -m MODULE WORDS...` prints. What it refuses is in there, as "error", with code, message
// and what to try, and is the answer.
Result<Json> ask_python(const std::string& module, const std::vector<std::string>& words);

}  // namespace penstock::tools
