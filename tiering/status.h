// Status says how an operation that the world may refuse has ended; Result<T> is a Status or the value.
//
// A refusal reads `<what>: <where>: <how much or errno>` and carries what the user can do about it. Its code is the
// exit code of the command that ends with it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tiering/check.h"

namespace penstock {

enum class Code {
  kOk = 0,
  kUsage = 2,          // the request itself is wrong: a flag, a key, a path that is missing or of the wrong kind
  kDoesNotFit = 3,     // memory or space: needed and available are both in the message
  kEnvironment = 4,    // permission, read-only, tmpfs, no direct I/O, no device, locked, an I/O error
  kCorrupt = 5,        // a store or data that fails its checks
  kComparison = 6,     // two things that should be equal are not
  kInterrupted = 130,  // stopped on request; what was committed stays
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, std::string remedy = {})
      : refusal_(std::make_shared<const Refusal>(Refusal{code, std::move(message), std::move(remedy)})) {
    CHECK(code != Code::kOk, "a refusal needs a code");
  }

  bool ok() const { return refusal_ == nullptr; }
  Code code() const { return ok() ? Code::kOk : refusal_->code; }
  const std::string& message() const { return ok() ? nothing() : refusal_->message; }
  // What the user can do about it; may be empty.
  const std::string& remedy() const { return ok() ? nothing() : refusal_->remedy; }

  // The same refusal, seen from further out: `outer: message`.
  Status within(const std::string& outer) const {
    return ok() ? Status() : Status(code(), outer + ": " + message(), remedy());
  }

 private:
  struct Refusal {
    Code code;
    std::string message;
    std::string remedy;
  };
  static const std::string& nothing();

  std::shared_ptr<const Refusal> refusal_;  // none when all is well, so that this costs nothing
};

// `<what>: <where>: <errno as name and words>`, with a code chosen from the errno (ENOSPC does not fit, EACCES is the
// environment, ENOENT is usage).
Status errno_status(const std::string& what_and_where, int error, std::string remedy = {});

// The same of a thread that the system does not grant, with the limits to raise; `or_else` is what else would help.
Status thread_status(const std::string& what_and_where, int error, const std::string& or_else = {});

// "EIO" for EIO; a number for one we have no name for.
std::string errno_name(int error);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    CHECK(!status_.ok(), "a Result without a value needs a refusal");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // REQUIRES: ok().
  T& value() & {
    CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    CHECK(ok(), status_.message());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace penstock

// Returns from the function with the refusal, if `expression` (a Status) is one.
#define PENSTOCK_TRY(expression)                                                                    \
  do {                                                                                              \
    if (::penstock::Status status_of_try = (expression); !status_of_try.ok()) return status_of_try; \
  } while (false)

// Declares `name` as the value of `expression` (a Result), or returns from the function with its refusal.
#define PENSTOCK_TRY_ASSIGN(name, expression)             \
  auto name##_result = (expression);                      \
  if (!name##_result.ok()) return name##_result.status(); \
  auto& name = *name##_result
