// ModelJson reads the values of a model's config.json by key. The first refusal is remembered; what is read after it
// does not matter, and is always within the limits.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tiering/status.h"

namespace penstock::trainer {

class ModelJson {
 public:
  static constexpr uint64_t kSizeMost = uint64_t{1} << 24;
  static constexpr uint64_t kLayersMost = uint64_t{1} << 14;

  // `object` outlives it; `where` begins refusals.
  ModelJson(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const nlohmann::json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const char* key) const { return find(key) != nullptr; }
  // Also where it is null.
  bool names(const char* key) const { return object_.contains(key); }

  uint32_t size(const char* key) { return size_up_to(key, kSizeMost); }
  uint32_t layers(const char* key) { return size_up_to(key, kLayersMost); }
  uint32_t size_or(const char* key, uint32_t otherwise) { return has(key) ? size(key) : otherwise; }

  double number(const char* key, double least, double most) {
    const nlohmann::json* value = find(key);
    if (value != nullptr && value->is_number()) {
      const double number = value->get<double>();
      if (number >= least && number <= most) return number;
    }
    refuse(key, text(value == nullptr ? "is missing" : "is " + value->dump(), ", expected a number from ", least,
                     " to ", most));
    return least;
  }
  double number_or(const char* key, double otherwise, double least, double most) {
    return has(key) ? number(key, least, most) : otherwise;
  }

  // Null means none, and is not the same as a key that is missing.
  double softcap(const char* key, double otherwise) {
    const auto found = object_.find(key);
    if (found == object_.end()) return otherwise;
    return found->is_null() ? 0 : number(key, 1e-6, 1e6);
  }

  bool flag_or(const char* key, bool otherwise) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(key, text("is ", value->dump(), ", expected true or false"));
    return value->is_boolean() ? value->get<bool>() : otherwise;
  }

  std::string word_or(const char* key, const std::string& otherwise) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) refuse(key, text("is ", value->dump(), ", expected a word"));
    return value->is_string() ? value->get<std::string>() : otherwise;
  }

  void refuse(const char* key, const std::string& why) {
    if (status_.ok()) status_ = Status(Code::kUsage, text(where_, ": ", key, ": ", why));
  }
  void adopt(const ModelJson& other) {
    if (status_.ok()) status_ = other.status_;
  }
  const Status& status() const { return status_; }

 private:
  uint32_t size_up_to(const char* key, uint64_t most) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) {
      refuse(key, "is missing");
      return 1;
    }
    if (value->is_number_unsigned() && value->get<uint64_t>() >= 1 && value->get<uint64_t>() <= most)
      return value->get<uint32_t>();
    refuse(key, text("is ", value->dump(), ", expected a whole number from 1 to ", most));
    return 1;
  }

  const nlohmann::json& object_;
  std::string where_;
  Status status_;
};

}  // namespace penstock::trainer
