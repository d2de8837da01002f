#include "runtime/trainer/config/config_values.h"

namespace penstock::trainer {

using json = nlohmann::ordered_json;

std::string read_number(const json& value, double least, double most, double& into) {
  if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() <= most))
    return text("is ", value.dump(), ", a number ",
                most == kNoLimit ? text("of at least ", least) : text("from ", least, " to ", most), " expected");
  into = value.get<double>();
  return "";
}

std::string read_whole_up_to(const json& value, uint32_t least, uint32_t most, uint32_t& into) {
  const std::string wrong = read_whole(value, least, into);
  return wrong.empty() && into > most ? text("is ", value.dump(), ", at most ", most, " expected") : wrong;
}

std::string read_flag(const json& value, bool& into) {
  if (!value.is_boolean()) return text("is ", value.dump(), ", true or false expected");
  into = value.get<bool>();
  return "";
}

std::string read_words(const json& value, std::string& into) {
  if (!value.is_string()) return text("is ", value.dump(), ", a string expected");
  into = value.get<std::string>();
  return "";
}

}  // namespace penstock::trainer
