#include "tools/penstock/quantity.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

namespace penstock::tools {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKibi = 1024;
// Letters alone are as fio and dd read them.
constexpr Unit kByteUnits[] = {{"", 1},
                               {"B", 1},
                               {"KiB", kKibi},
                               {"MiB", kKibi* kKibi},
                               {"GiB", kKibi* kKibi* kKibi},
                               {"TiB", kKibi* kKibi* kKibi* kKibi},
                               {"K", kKibi},
                               {"k", kKibi},
                               {"M", kKibi* kKibi},
                               {"m", kKibi* kKibi},
                               {"G", kKibi* kKibi* kKibi},
                               {"g", kKibi* kKibi* kKibi},
                               {"T", kKibi* kKibi* kKibi* kKibi},
                               {"t", kKibi* kKibi* kKibi* kKibi},
                               {"kB", 1e3},
                               {"MB", 1e6},
                               {"GB", 1e9},
                               {"TB", 1e12}};
constexpr Unit kTimeUnits[] = {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"min", 60}};
constexpr Unit kCountUnits[] = {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}};

constexpr double kSecondsMost = 1e9;  // thirty years
// Of bytes or operations a second: slower or faster than anything, and still far from where doubles end.
constexpr double kRateLeast = 1e-6, kRateMost = 1e24;

struct Kind {
  const char* name;
  std::span<const Unit> units;
  const char* remedy;
  std::chars_format format = std::chars_format::fixed;
};

constexpr Kind kBytes{"size", kByteUnits,
                      "write a number and one of B KiB MiB GiB TiB (or K M G T) kB MB GB TB, such as 1MiB"};
constexpr Kind kTime{"time", kTimeUnits, "write a number and one of ms s min, such as 2s"};
constexpr Kind kCount{"count", kCountUnits, "write a whole number, such as 8 (or 3k, 7M, 7B or 7e9 for larger ones)",
                      std::chars_format::general};
constexpr Kind kRate{"rate", kCountUnits, "write a number above 0, such as 365 or 1.5e14", std::chars_format::general};

Status refusal(const Kind& kind, std::string_view written, const char* why) {
  return Status(Code::kUsage, text(kind.name, ": '", written, "': ", why), kind.remedy);
}

struct Quantity {
  double number;
  double factor;  // of its unit

  double value() const { return number * factor; }
};

// 24GIB and 24gib can mean nothing else; of shorter ones, a letter's size may be all that tells them apart.
bool is_in_other_letters(std::string_view unit, std::string_view known) {
  return known.size() == 3 && std::ranges::equal(unit, known, [](unsigned char a, unsigned char b) {
           return std::tolower(a) == std::tolower(b);
         });
}

Result<Quantity> parse(const Kind& kind, std::string_view written) {
  double number = 0;
  const auto [rest, error] = std::from_chars(written.data(), written.data() + written.size(), number, kind.format);
  if (error != std::errc() || !std::isfinite(number)) return refusal(kind, written, "a number expected");
  if (std::signbit(number)) return refusal(kind, written, "at least 0 expected");
  const std::string_view unit = written.substr(static_cast<size_t>(rest - written.data()));
  for (const Unit& known : kind.units) {
    if (unit == known.name || is_in_other_letters(unit, known.name)) return Quantity{number, known.factor};
  }
  return refusal(kind, written, "unknown unit");
}

// 2.2GiB is the nearest byte; 2.2 bytes are a mistake. Doubles are exact to 2^53: 8 PiB, more than anything that is
// asked for here.
Result<uint64_t> parse_whole(const Kind& kind, std::string_view written) {
  PENSTOCK_TRY_ASSIGN(quantity, parse(kind, written));
  const double nearest = std::round(quantity.value());
  if (nearest >= 0x1p53) return refusal(kind, written, "too large");
  const bool vanishes = nearest == 0 && quantity.number > 0;
  if (vanishes || (quantity.factor == 1 && nearest != quantity.number))
    return refusal(kind, written, "a whole number expected");
  return static_cast<uint64_t>(nearest);
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view written) { return parse_whole(kBytes, written); }
Result<double> parse_seconds(std::string_view written) {
  PENSTOCK_TRY_ASSIGN(quantity, parse(kTime, written));
  if (quantity.value() > kSecondsMost) return refusal(kTime, written, "too large");
  return quantity.value();
}
Result<uint64_t> parse_count(std::string_view written) { return parse_whole(kCount, written); }
Result<double> parse_rate(std::string_view written) {
  PENSTOCK_TRY_ASSIGN(quantity, parse(kRate, written));
  if (quantity.value() < kRateLeast) return refusal(kRate, written, "a number above 0 expected");
  if (quantity.value() > kRateMost) return refusal(kRate, written, "too large");
  return quantity.value();
}

std::string counted(uint64_t count, const std::string& noun) { return text(count, " ", noun, count == 1 ? "" : "s"); }

std::string short_count_text(double count) {
  if (count < 1e4) return fixed(count, 0);
  // What rounds up to 1000 of a unit is 1 of the next.
  const Unit unit = count >= 999.5e6 ? Unit{"B", 1e9} : count >= 999.5e3 ? Unit{"M", 1e6} : Unit{"k", 1e3};
  const double number = count / unit.factor;
  std::string digits = fixed(number, number < 9.995 ? 2 : number < 99.95 ? 1 : 0);
  if (digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.ends_with('.')) digits.pop_back();
  }
  return text(digits, unit.name);
}

std::string seconds_text(double seconds) {
  if (seconds < 1) return fixed(seconds * 1e3, seconds < 0.01 ? 1 : 0) + " ms";
  if (seconds < 120) return fixed(seconds, seconds < 10 ? 1 : 0) + " s";
  if (seconds > kSecondsMost) return fixed(seconds / 86400, 0) + " days";
  const uint64_t whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole >= 7200) return text(whole / 3600, " h ", whole % 3600 / 60, " min");
  return text(whole / 60, " min ", whole % 60, " s");
}

std::string bytes_flag_text(uint64_t bytes) {
  if (bytes == 0) return "0";
  if (bytes % kGiB == 0) return text(bytes / kGiB, "GiB");
  if (bytes % kMiB == 0) return text(bytes / kMiB, "MiB");
  if (bytes % 1'000'000'000 == 0) return text(bytes / 1'000'000'000, "GB");
  if (bytes % kKiB == 0) return text(bytes / kKiB, "KiB");
  return text(bytes);
}

}  // namespace penstock::tools
