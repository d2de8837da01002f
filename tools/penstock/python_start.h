// Starts the part of a verb that is written in Python, which is a package of its own beside the command.
#pragma once

#include <string>

#include "tools/penstock/verb.h"

namespace penstock::tools {

// That of PENSTOCK_PYTHON, of the source's .venv, or python3.
std::string python_of_command();

// Becomes `python -m MODULE` with the command's own arguments from the verb's last word on. Returns only where it
// cannot. The module itself says what it misses in that Python.
Status start_python(Session& session, const std::string& verb, const std::string& module);

// The JSON object that `python -m MODULE WORDS...` prints. What it refuses is in there, as "error", with code, message
// and what to try, and is the answer.
Result<Json> ask_python(const std::string& module, const std::vector<std::string>& words);

}  // namespace penstock::tools
