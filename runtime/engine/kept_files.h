// The files and folders of kept steps: copied, marked, renamed and flushed, so that a crash leaves what was there or
// what is to be.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tiering/status.h"

namespace penstock::engine {

struct CopiedRun {
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// The runs of the file, at their places; between them are holes. Without runs: all of it.
Status copy_file(const std::string& source, const std::string& target, std::span<const CopiedRun> runs);

// Whether two files of a store hold the same state: every commit writes a root of its own, which names all of it.
bool have_the_same_roots(const std::string& one, const std::string& other);

// False where one of them does not say of which store it is.
bool are_of_two_stores(const std::string& one, const std::string& other);

// A crash leaves all of the line or, without its end, a part.
Status write_line(const std::string& path, const std::string& line);
// None where there is no whole line.
std::optional<std::string> line_in(const std::string& path);

Status make_folder(const std::string& folder);
Status sync_folder(const std::string& folder);
Status rename_file(const std::string& from, const std::string& to);
void remove_all(const std::string& path);

}  // namespace penstock::engine
