#include <algorithm>
#include <cstring>
#include <random>

#include "tests/fuzz/target.h"
#include "tests/support/damage.h"

namespace penstock::fuzz {
namespace {

constexpr size_t kBytesMost = 64 * kKiB;

using Random = std::mt19937_64;

size_t below(Random& random, size_t end) { return end == 0 ? 0 : random() % end; }

// Numbers at the ends of what 8 to 64 bits hold, powers of two, and neighbours of what was there.
uint64_t extreme_number(uint64_t before, Random& random) {
  const uint64_t power = uint64_t{1} << (random() % 64);
  const uint64_t numbers[] = {0, 1, power, power - 1, ~uint64_t{0}, ~power, before + 1, before - 1, random() % 256};
  return numbers[random() % std::size(numbers)];
}

void put_extreme_number(Bytes& bytes, Random& random) {
  const size_t size = std::min(size_t{1} << (random() % 4), bytes.size());
  size_t at = below(random, bytes.size() - size + 1);
  if (random() % 2) at = at / 4 * 4;  // where most fields begin
  uint64_t number = 0;
  std::memcpy(&number, &bytes[at], size);
  number = extreme_number(number, random);
  std::memcpy(&bytes[at], &number, size);
}

std::span<const std::byte> part_of(const Bytes& bytes, Random& random) {
  const size_t from = below(random, bytes.size()), length = below(random, bytes.size() - from + 1);
  return std::span(bytes).subspan(from, std::min<size_t>(length, 256));
}

void replace(Bytes& bytes, size_t at, size_t length, std::span<const std::byte> with) {
  Bytes whole(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(at));
  whole.insert(whole.end(), with.begin(), with.end());
  whole.insert(whole.end(), bytes.begin() + static_cast<ptrdiff_t>(at + length), bytes.end());
  bytes = std::move(whole);
}

bool in_word(std::byte byte) {
  const char c = static_cast<char>(byte);
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_';
}

// The word or the single sign that `at` lies in.
std::pair<size_t, size_t> word_around(const Bytes& bytes, size_t at) {
  size_t from = at, to = at;
  while (from > 0 && in_word(bytes[from - 1]) && in_word(bytes[at])) --from;
  while (to < bytes.size() && in_word(bytes[to])) ++to;
  return {from, std::max(to, at + 1) - from};
}

constexpr std::string_view kNumbers[] = {"0",
                                         "-0",
                                         "1",
                                         "-1",
                                         "0.5",
                                         "2",
                                         "255",
                                         "65536",
                                         "1e3",
                                         "1e15",
                                         "1e30",
                                         "1e300",
                                         "1e308",
                                         "1e-300",
                                         "1e-320",
                                         "-1e300",
                                         "1e999",
                                         "nan",
                                         "inf",
                                         "999999999999999999999999",
                                         "16777216",
                                         "16777217",
                                         "4294967296",
                                         "9007199254740993",
                                         "18446744073709551615",
                                         "-9223372036854775808"};

// A number mostly makes way for a number, so that the rest of the text still has its form.
Bytes word_instead(const Target& target, std::byte first, Random& random) {
  const bool number = (first >= std::byte{'0'} && first <= std::byte{'9'}) || first == std::byte{'-'};
  if (random() % 8 < (number ? 7u : 2u)) return bytes_of(kNumbers[random() % std::size(kNumbers)]);
  return bytes_of(target.words[random() % target.words.size()]);
}

// A few whole elements lost, doubled or exchanged: what stands between two signs.
void move_a_run(Bytes& bytes, Random& random) {
  const std::span<const std::byte> part = part_of(bytes, random);
  const Bytes copy(part.begin(), part.end());
  if (random() % 2) return replace(bytes, below(random, bytes.size()), 0, copy);
  const size_t from = static_cast<size_t>(part.data() - bytes.data());
  replace(bytes, from, part.size(), {});
}

void one_accident(const Target& target, std::span<const Bytes> seeds, Bytes& bytes, Random& random) {
  if (bytes.empty()) bytes = seeds[random() % seeds.size()];
  if (bytes.empty()) bytes.resize(1 + random() % 16);
  if (!target.words.empty() && random() % 4 != 0) {
    const auto [from, length] = word_around(bytes, below(random, bytes.size()));
    return replace(bytes, from, random() % 4 ? length : 0, word_instead(target, bytes[from], random));
  }
  const Bytes& other = seeds[random() % seeds.size()];
  switch (random() % 6) {
    case 0:
      return replace(bytes, below(random, bytes.size()), 0, part_of(other, random));
    case 1: {
      const size_t at = below(random, std::min(bytes.size(), other.size()));
      return replace(bytes, at, bytes.size() - at, std::span(other).subspan(at));
    }
    case 2:
      return move_a_run(bytes, random);
    case 3:
      bytes = damaged(std::move(bytes), random);
      return;
    default:
      put_extreme_number(bytes, random);
  }
}

}  // namespace

Bytes mutated(const Target& target, std::span<const Bytes> seeds, Bytes bytes, uint64_t seed) {
  Random random(seed);
  const uint64_t most = target.words.empty() ? 4 : 2;
  for (uint64_t accidents = 1 + random() % most; accidents > 0; --accidents) one_accident(target, seeds, bytes, random);
  if (bytes.size() > kBytesMost) bytes.resize(kBytesMost);
  return bytes;
}

}  // namespace penstock::fuzz
