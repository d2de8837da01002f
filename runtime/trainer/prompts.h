// What a model is asked, and how its tokens become text. It needs no LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::trainer {

struct Prompt {
  std::string text;  // as the model sees it, a chat's template included
  std::vector<int32_t> tokens;
};

// What each token is as text: bytes, since a token may end within a character.
class TokenTexts {
 public:
  TokenTexts() = default;
  // `lengths`: of each token's bytes, which stand in `bytes` one after another.
  TokenTexts(std::string bytes, std::span<const uint32_t> lengths);
  // Bytes are tokens 0 to 255.
  static TokenTexts of_bytes();

  // Tokens that it does not know have no text.
  std::string text_of(std::span<const int32_t> tokens) const;

 private:
  std::string bytes_;
  std::vector<uint32_t> ends_;
};

// Of a run, made ready.
struct Prompts {
  std::vector<Prompt> prompts;
  std::vector<int32_t> ends;  // tokens that end an answer
  TokenTexts texts;

  // Of the longest.
  uint64_t most_tokens() const;
  uint64_t tokens() const;
};

}  // namespace penstock::trainer
