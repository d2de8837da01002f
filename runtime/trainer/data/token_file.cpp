#include "runtime/trainer/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "runtime/trainer/files/file_io.h"
#include "tiering/store/store_hash.h"

namespace penstock::trainer {
namespace {

constexpr uint64_t kLlmcHeaderBytes = 1024;
// {magic, version, tokens} of llm.c: GPT-2's tokens are 2 B wide, Llama 3's 4 B.
constexpr uint32_t kLlmcMagic2 = 20240520, kLlmcMagic4 = 20240801;
constexpr uint64_t kIndexMostBytes = uint64_t{4} << 30;
constexpr char kMegatronMagic[] = "MMIDIDX\0";  // 9 bytes: MMIDIDX and two zeros

template <typename Number>
Number number_at(const std::byte* at) {
  Number value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

constexpr uint64_t kHashSeed = 0x534e'454b'4f54;

bool ends_with(const std::string& path, const char* ending) { return path.ends_with(ending); }

}  // namespace

// MMIDIDX, version 1 as 8 B, the code of the dtype as 1 B, counts of sequences and of documents as 8 B each, a length
// of 4 B for each sequence, then its offset, then the documents.
Result<MegatronIndex> parse_megatron_index(std::span<const std::byte> bytes) {
  constexpr size_t kMagic = 9, kCode = kMagic + 8, kSequences = kCode + 1, kLengths = kSequences + 16;
  auto refused = [](const std::string& why) { return Status(Code::kCorrupt, "Megatron index: " + why); };
  if (bytes.size() < kLengths) return refused(text(bytes.size(), " B, at least ", kLengths, " B expected"));
  if (std::memcmp(bytes.data(), kMegatronMagic, kMagic) != 0) return refused("does not begin with MMIDIDX");
  if (const auto version = number_at<uint64_t>(bytes.data() + kMagic); version != 1)
    return refused(text("version ", version, ", 1 expected"));
  MegatronIndex index;
  switch (const int code = static_cast<int>(bytes[kCode])) {
    case 8:  // uint16
      index.width_bytes = 2;
      break;
    case 4:  // int32
      index.width_bytes = 4;
      break;
    default:
      return refused(text("dtype ", code, ", 8 (uint16) or 4 (int32) expected"));
  }
  const auto sequences = number_at<uint64_t>(bytes.data() + kSequences);
  if (sequences > (bytes.size() - kLengths) / 12)
    return refused(text(sequences, " sequences do not fit into its ", bytes.size(), " B"));
  for (uint64_t i = 0; i < sequences; ++i) {
    const auto length = number_at<int32_t>(bytes.data() + kLengths + 4 * i);
    if (length < 0) return refused(text("sequence ", i, " has ", length, " tokens"));
    index.tokens += static_cast<uint64_t>(length);
  }
  return index;
}

Result<std::unique_ptr<TokenFile>> TokenFile::open(const std::string& path, TokenWidth width) {
  std::unique_ptr<TokenFile> file(new TokenFile(path));
  PENSTOCK_TRY(file->map());
  PENSTOCK_TRY(file->choose_form(width));
  if (file->tokens_ == 0) return Status(Code::kUsage, text("open ", path, ": has no tokens"));
  return file;
}

Status TokenFile::map() {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return errno_status(text("open ", path_), errno);
  struct stat info {};
  int error = ::fstat(descriptor, &info) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
    bytes_ = static_cast<uint64_t>(info.st_size);
    void* memory = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED)
      error = errno;
    else
      mapped_ = static_cast<const std::byte*>(memory);
  }
  ::close(descriptor);
  if (error != 0) return errno_status(text("map ", bytes_, " B of ", path_), error);
  return mapped_ != nullptr
             ? Status()
             : Status(Code::kUsage, text("open ", path_, ": is empty or not a file"), "a file of tokens or text");
}

TokenFile::~TokenFile() {
  if (mapped_ != nullptr) ::munmap(const_cast<std::byte*>(mapped_), bytes_);
}

Status TokenFile::choose_form(TokenWidth width) {
  if (const std::string index = path_.substr(0, path_.size() - std::min<size_t>(path_.size(), 4)) + ".idx";
      ends_with(path_, ".bin") && ::access(index.c_str(), F_OK) == 0)
    return read_index(index);
  if (width == TokenWidth::automatic && (ends_with(path_, ".txt") || ends_with(path_, ".md")))
    width = TokenWidth::bytes_1;
  if (ends_with(path_, ".jsonl") || ends_with(path_, ".json"))
    return Status(Code::kUsage, text("open ", path_, ": has samples, not tokens"),
                  text("`penstock data ", path_, " --model FOLDER --out DIR`, then --data DIR"));
  if (width == TokenWidth::automatic && !ends_with(path_, ".bin"))
    return Status(Code::kUsage, text("open ", path_, ": cannot tell the format from the file name"),
                  "name it .bin (tokens of 2 B), .txt or .md (text), or say how wide its tokens are");
  if (width == TokenWidth::bytes_1) {
    width_bytes_ = 1, tokens_ = bytes_;
    return Status();
  }
  if (bytes_ >= kLlmcHeaderBytes) {
    const auto magic = number_at<uint32_t>(mapped_), tokens = number_at<uint32_t>(mapped_ + 8);
    if (magic == kLlmcMagic2 || magic == kLlmcMagic4) {
      width_bytes_ = magic == kLlmcMagic2 ? 2 : 4;
      first_byte_ = kLlmcHeaderBytes, tokens_ = tokens;
      if ((bytes_ - first_byte_) / width_bytes_ != tokens_)
        return Status(Code::kCorrupt, text("open ", path_, ": its header says ", tokens_, " tokens, ",
                                           (bytes_ - first_byte_) / width_bytes_, " are there"));
      return Status();
    }
  }
  width_bytes_ = width == TokenWidth::bytes_4 ? 4 : 2;
  if (bytes_ % width_bytes_ != 0)
    return Status(Code::kCorrupt,
                  text("open ", path_, ": ", bytes_, " B are not whole tokens of ", width_bytes_, " B"));
  tokens_ = bytes_ / width_bytes_;
  return Status();
}

Status TokenFile::read_index(const std::string& index_path) {
  PENSTOCK_TRY_ASSIGN(words, read_small_file(index_path, kIndexMostBytes));
  auto index = parse_megatron_index(std::as_bytes(std::span(words)));
  if (!index.ok()) return index.status().within(index_path);
  width_bytes_ = index->width_bytes, tokens_ = index->tokens;
  if (bytes_ != tokens_ * width_bytes_)
    return Status(Code::kCorrupt, text("open ", path_, ": ", bytes_, " B, its index says ", tokens_, " tokens of ",
                                       width_bytes_, " B"));
  return Status();
}

uint32_t TokenFile::token(uint64_t at) const {
  const std::byte* place = mapped_ + first_byte_ + at * width_bytes_;
  return width_bytes_ == 1   ? static_cast<uint32_t>(*place)
         : width_bytes_ == 2 ? number_at<uint16_t>(place)
                             : number_at<uint32_t>(place);
}

void TokenFile::read(uint64_t first, std::span<int32_t> into) const {
  CHECK(first + into.size() <= tokens_, "tokens ", first, " to ", first + into.size(), " of ", tokens_, " in ", path_);
  for (size_t i = 0; i < into.size(); ++i) into[i] = static_cast<int32_t>(token(first + i));
}

Status TokenFile::check(uint32_t vocabulary) const {
  for (uint64_t at = 0; at < tokens_; ++at)
    if (const uint32_t found = token(at); found >= vocabulary)
      return Status(Code::kUsage,
                    text("check ", path_, ": token ", at, " is ", found, ", the vocabulary has ", vocabulary),
                    "give a model with the vocabulary that the file was made with");
  return Status();
}

std::string TokenFile::hash() const {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(store_hash({mapped_, bytes_}, kHashSeed)));
  return digits;
}

}  // namespace penstock::trainer
