// ByteWriter and ByteReader put the fields of a stored record one after another, little-endian, and take them back.
//
// A reader never reads past its end: from the first field that is missing on it returns zeros and ok() is false. So a
// parser reads all its fields and checks once. A parser must compare a length that it has read with left() before it
// allocates anything.
#pragma once

#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tiering/check.h"

namespace penstock {

static_assert(std::endian::native == std::endian::little, "records are stored little-endian");

class ByteWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void put(T value) {
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // A length of 32 bits, then the characters.
  void put_string(const std::string& characters) {
    put(static_cast<uint32_t>(characters.size()));
    put_bytes(std::as_bytes(std::span(characters)));
  }
  void pad_to(size_t size_bytes) {
    CHECK(bytes_.size() <= size_bytes, bytes_.size(), " B do not fit into ", size_bytes, " B");
    bytes_.resize(size_bytes);
  }

  size_t size() const { return bytes_.size(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  T get() {
    T value{};
    std::span<const std::byte> from = get_bytes(sizeof(T));
    if (ok_) std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> get_bytes(size_t count) {
    if (!ok_ || count > left()) {
      ok_ = false;
      return {};
    }
    std::span<const std::byte> found = bytes_.subspan(at_, count);
    at_ += count;
    return found;
  }
  std::string get_string() {
    std::span<const std::byte> characters = get_bytes(get<uint32_t>());
    return std::string(reinterpret_cast<const char*>(characters.data()), characters.size());
  }

  bool ok() const { return ok_; }
  // For a field whose value is invalid.
  void fail() { ok_ = false; }
  size_t left() const { return bytes_.size() - at_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace penstock
