// TokenFile: a file of tokens that lies in memory as it lies on the drive, mapped.
//
// Kinds: bare little-endian uint16 or uint32 (nanoGPT's .bin), the same behind llm.c's header of 1024 bytes (told by
// its magic number), Megatron's .bin beside an .idx, and plain text, whose bytes are tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tiering/status.h"

namespace penstock::trainer {

enum class TokenWidth : uint8_t { automatic, bytes_1, bytes_2, bytes_4 };

// Plain text: bytes are tokens 0 to 255, and one more ends a document.
constexpr int32_t kByteEndOfText = 256;
constexpr uint32_t kByteVocabulary = 257;

class TokenFile {
 public:
  // `width` is that of bare files; automatic: 2 B for .bin, 1 B (text) for .txt and .md; others are refused.
  static Result<std::unique_ptr<TokenFile>> open(const std::string& path, TokenWidth width = TokenWidth::automatic);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t tokens() const { return tokens_; }
  // REQUIRES: first + into.size() <= tokens().
  void read(uint64_t first, std::span<int32_t> into) const;
  // Refuses the file if it has a token outside the vocabulary: the whole file is read.
  Status check(uint32_t vocabulary) const;
  // Of all its bytes: what a run writes down of the data that it learnt from.
  std::string hash() const;

 private:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  Status map();
  Status choose_form(TokenWidth width);
  Status read_index(const std::string& index_path);
  uint32_t token(uint64_t at) const;

  const std::string path_;
  const std::byte* mapped_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t first_byte_ = 0;
  uint32_t width_bytes_ = 2;
  uint64_t tokens_ = 0;
};

// What an .idx file of Megatron says of its .bin. The documents' limits do not matter to us: samples run across them.
struct MegatronIndex {
  uint32_t width_bytes = 2;
  uint64_t tokens = 0;
};
Result<MegatronIndex> parse_megatron_index(std::span<const std::byte> bytes);

}  // namespace penstock::trainer
