// For parsers that read files by name: a folder, and the files that an input stands for.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/aio/test_files.h"
#include "tests/fuzz/target.h"
#include "tiering/store/byte_codec.h"

namespace penstock::fuzz {

// Files are written by the thousand: where memory may hold some, they lie there.
inline std::filesystem::path quick_folder() {
  return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
}

inline void write_file(const std::filesystem::path& path, std::span<const std::byte> content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
}

// The contents of the named files stand one after another in the input, each ended by a zero byte. The rest of it.
inline std::span<const std::byte> write_files(const aio::ScratchFolder& scratch,
                                              std::span<const std::string_view> names,
                                              std::span<const std::byte> input) {
  for (const std::string_view name : names) {
    const auto end = std::find(input.begin(), input.end(), std::byte{0});
    const auto length = static_cast<size_t>(end - input.begin());
    write_file(scratch / std::string(name), input.first(length));
    input = input.subspan(std::min(length + 1, input.size()));
  }
  return input;
}

inline Bytes input_of_files(std::initializer_list<std::string_view> contents, std::string_view rest = "") {
  std::string all;
  for (const std::string_view content : contents) all += std::string(content) + '\0';
  return bytes_of(all.append(rest));
}

}  // namespace penstock::fuzz
