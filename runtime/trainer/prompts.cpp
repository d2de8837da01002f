#include "runtime/trainer/prompts.h"

#include <algorithm>
#include <numeric>

namespace penstock::trainer {

TokenTexts::TokenTexts(std::string bytes, std::span<const uint32_t> lengths)
    : bytes_(std::move(bytes)), ends_(lengths.begin(), lengths.end()) {
  std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
  bytes_.resize(ends_.empty() ? 0 : ends_.back());
}

TokenTexts TokenTexts::of_bytes() {
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  return TokenTexts(std::move(bytes), std::vector<uint32_t>(256, 1));
}

std::string TokenTexts::text_of(std::span<const int32_t> tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    if (token < 0 || static_cast<size_t>(token) >= ends_.size()) continue;
    const uint32_t first = token == 0 ? 0 : ends_[static_cast<size_t>(token) - 1];
    text.append(bytes_, first, ends_[static_cast<size_t>(token)] - first);
  }
  return text;
}

uint64_t Prompts::most_tokens() const {
  uint64_t most = 0;
  for (const Prompt& prompt : prompts) most = std::max<uint64_t>(most, prompt.tokens.size());
  return most;
}

uint64_t Prompts::tokens() const {
  uint64_t sum = 0;
  for (const Prompt& prompt : prompts) sum += prompt.tokens.size();
  return sum;
}

}  // namespace penstock::trainer
