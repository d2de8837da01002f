// Safetensors: files of named tensors, one behind the other, after a header of JSON. Read and written in pieces; the
// values pass as fp32, whatever the file holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tiering/status.h"

namespace penstock::trainer {

enum class FileDtype : uint8_t { f32, bf16, f16, f64 };

constexpr uint64_t bytes_of(FileDtype dtype) { return dtype == FileDtype::f64 ? 8 : dtype == FileDtype::f32 ? 4 : 2; }
const char* name_of(FileDtype dtype);

struct StoredTensor {
  FileDtype dtype = FileDtype::f32;
  std::vector<uint64_t> shape;
  uint64_t elements = 0;
  uint64_t offset_bytes = 0;  // from the end of the header
};

struct SafetensorsHeader {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> other_dtypes;  // tensors whose values we do not read, with their dtype's name
};

// `json` is the header without its length; `data_bytes` what the file has behind it. Refuses tensors that leave the
// file, overlap or have another length than their shape says.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t data_bytes);

class SafetensorsFile {
 public:
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const SafetensorsHeader& header() const { return header_; }
  // Elements [first, first + values.size()) of a tensor that the header has.
  Status read(const StoredTensor& tensor, uint64_t first, std::span<float> values) const;

 private:
  explicit SafetensorsFile(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  int descriptor_ = -1;
  uint64_t data_offset_bytes_ = 0;
  SafetensorsHeader header_;
};

class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    std::vector<uint64_t> shape;
  };
  // Makes the file with its header, and room for all values; refuses one that exists. They are of one dtype.
  static Result<std::unique_ptr<SafetensorsWriter>> create(const std::string& path, const std::vector<Entry>& entries,
                                                           FileDtype dtype);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  uint64_t data_bytes() const { return data_bytes_; }
  // In any order, each element once. Rounds to nearest, ties to even.
  Status write(const std::string& name, uint64_t first, std::span<const float> values);
  // Waits until the drive has it.
  Status finish();

 private:
  SafetensorsWriter(std::string path, FileDtype dtype) : path_(std::move(path)), dtype_(dtype) {}

  const std::string path_;
  const FileDtype dtype_;
  int descriptor_ = -1;
  uint64_t data_offset_bytes_ = 0, data_bytes_ = 0;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace penstock::trainer
