// Man pages, in roff: one for the command, one for each verb.
#pragma once

#include <string>
#include <vector>

#include "tools/penstock/output_word.h"
#include "tools/penstock/syntax.h"

namespace penstock::tools {

// "penstock-nvme-probe.1"
std::string manual_name(const SyntaxVerb& verb);

// `output` explains what the verb prints.
std::string manual_page(const SyntaxVerb& verb, const std::vector<SyntaxVerb>& verbs,
                        const std::vector<OutputWord>& output = {});

}  // namespace penstock::tools
