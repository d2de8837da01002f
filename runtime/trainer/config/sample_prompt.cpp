#include "runtime/trainer/config/sample_prompt.h"

#include <nlohmann/json.hpp>

namespace penstock::trainer {

Result<std::string> parse_prompt(const std::string& written) {
  const nlohmann::ordered_json item = nlohmann::ordered_json::parse(written, nullptr, /*allow_exceptions=*/false);
  const bool is_object = item.is_object() && item.size() == 1;
  const bool is_text = is_object && item.contains("text") && item["text"].is_string();
  const bool is_chat = is_object && item.contains("messages") && item["messages"].is_array();
  if (item.is_string() || is_text || is_chat) return item.dump();
  return Status(Code::kUsage, text("has ", item.is_discarded() ? written.substr(0, 100) : item.dump(),
                                   "; a string, {\"text\": ...} or {\"messages\": [...]} expected"));
}

}  // namespace penstock::trainer
