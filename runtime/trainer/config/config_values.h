// One value of a config, read by its kind.
//
// Each of these returns nothing and sets `into` if the value is of that kind and within its limits, else what is wrong
// with it, as it follows a key's name: "is 3, a string expected". `into` then has no meaning.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tiering/check.h"

namespace penstock::trainer {

// No limit.
inline constexpr double kNoLimit = std::numeric_limits<double>::max();

std::string read_number(const nlohmann::ordered_json& value, double least, double most, double& into);

// DeepSpeed's files have whole numbers as 5e8 at times.
template <typename Number>
std::string read_whole(const nlohmann::ordered_json& value, double least, Number& into) {
  constexpr double most = sizeof(Number) == 4 ? 4294967295.0 : 9007199254740992.0;
  double found = 0;
  const std::string wrong = read_number(value, least, most, found);
  if (!wrong.empty() || found != std::floor(found))
    return text("is ", value.dump(), ", a whole number from ", static_cast<uint64_t>(least), " to ",
                static_cast<uint64_t>(most), " expected");
  into = static_cast<Number>(found);
  return "";
}

std::string read_whole_up_to(const nlohmann::ordered_json& value, uint32_t least, uint32_t most, uint32_t& into);
std::string read_flag(const nlohmann::ordered_json& value, bool& into);
std::string read_words(const nlohmann::ordered_json& value, std::string& into);

// A string that is one of these names.
template <typename Choice>
std::string read_choice(const nlohmann::ordered_json& value,
                        std::initializer_list<std::pair<const char*, Choice>> choices, Choice& into) {
  std::string known;
  for (const auto& [name, meaning] : choices) {
    if (value == name) {
      into = meaning;
      return "";
    }
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return text("is ", value.dump(), ", one of these expected: ", known);
}

}  // namespace penstock::trainer
