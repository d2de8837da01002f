#include "tools/penstock/quantity.h"

#include <cmath>

#include "tests/fuzz/target.h"

namespace penstock::fuzz {
namespace {

using namespace tools;

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const char* written :
       {"4096", "1.5MiB", "200GiB", "3kB", "0.25", "250ms", "2min", "7e9", "1.3B", "350M", "17B"}) {
    all.push_back(bytes_of(written));
  }
  return all;
}

template <typename T>
std::string explained(const Result<T>& result) {
  if (result.ok()) return "";
  if (result.status().code() != Code::kUsage || result.status().remedy().empty()) return "refused without a way out";
  return "";
}

std::string run(std::span<const std::byte> input) {
  const std::string written = text_of(input);
  const Result<uint64_t> bytes = parse_bytes(written), count = parse_count(written);
  const Result<double> seconds = parse_seconds(written), rate = parse_rate(written);
  for (const std::string& wrong : {explained(bytes), explained(count), explained(seconds), explained(rate)}) {
    if (!wrong.empty()) return wrong;
  }
  if (bytes.ok()) {
    const Result<uint64_t> again = parse_bytes(bytes_flag_text(*bytes));
    if (!again.ok() || *again != *bytes) return "bytes are not read back from " + bytes_flag_text(*bytes);
    if (bytes_text(*bytes).empty()) return "bytes without a text";
  }
  if (count.ok() && static_cast<double>(*count) > 0x1p53) return "a count that a double does not hold";
  if (seconds.ok()) {
    if (!(*seconds >= 0 && *seconds <= 1e9)) return "seconds that no clock knows";
    if (fixed(*seconds, 3).empty() || seconds_text(*seconds).empty()) return "seconds without a text";
  }
  if (rate.ok()) {
    if (!std::isfinite(*rate) || *rate <= 0) return "a rate that is none";
    if (std::stod(fixed(*rate, 6)) > *rate * 1.000001 + 1e-6) return "a rate shown as another: " + fixed(*rate, 6);
  }
  return "";
}

constexpr std::string_view kWords[] = {"B",
                                       "KiB",
                                       "MiB",
                                       "GiB",
                                       "TiB",
                                       "kB",
                                       "MB",
                                       "GB",
                                       "TB",
                                       "ms",
                                       "s",
                                       "min",
                                       "k",
                                       "M",
                                       ".",
                                       "e",
                                       " ",
                                       std::string_view("\0", 1),
                                       "0000000000000000000000000000000000000000000000000000000000000000000000000000"};

}  // namespace

const Target quantity{.name = "quantity", .seeds = seeds, .run = run, .words = kWords, .rounds = 100000};

}  // namespace penstock::fuzz
