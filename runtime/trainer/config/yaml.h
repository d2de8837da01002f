// A config that is written in YAML, as the JSON that it means. What is read is the part of YAML 1.2 that people write
// configs in: block maps and lists, [lists] and {maps} in one or more lines, plain and quoted words, comments. All else
// that YAML has is refused by its name and place: anchors, tags, blocks of text, several documents; so are words that
// readers of YAML do not agree on, as an unquoted yes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tiering/status.h"

namespace penstock::trainer {

// "at line 3, column 7: ..." where it is refused. The outermost value is a map.
Result<nlohmann::ordered_json> parse_yaml(const std::string& text);

// Whether a config is meant for parse_yaml(): behind comments, JSON begins with a bracket. REQUIRES: not empty.
bool looks_like_yaml(const std::string& text);

}  // namespace penstock::trainer
