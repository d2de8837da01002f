// Sizes, times and counts as people write and read them: 1MiB, 1.5GB, 200ms, 2min, 7B.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tiering/status.h"
#include "tiering/tier.h"  // bytes_text() and fixed()

namespace penstock::tools {

// A number and B, KiB, MiB, GiB, TiB (or K, M, G, T of either case), kB, MB, GB or TB; bytes without a unit.
Result<uint64_t> parse_bytes(std::string_view written);

// A number and ms, s or min; seconds without a unit.
Result<double> parse_seconds(std::string_view written);

// A number, 7e9 too, and k, M or B (10^9); ones without a unit.
Result<uint64_t> parse_count(std::string_view written);

// The same, but neither whole nor 0: from 1e-6 to 1e24.
Result<double> parse_rate(std::string_view written);

// "40M", "6.74B", "35k": to three digits, for figures that are no more exact than that; below 10,000 all of it.
std::string short_count_text(double count);

// "250 ms", "12.5 s", "3 min 20 s".
std::string seconds_text(double seconds);

// "4KiB", "1MiB", "1536": the shortest that parse_bytes() reads back.
std::string bytes_flag_text(uint64_t bytes);

// "1 note", "2 notes", "0 notes".
std::string counted(uint64_t count, const std::string& noun);

}  // namespace penstock::tools
