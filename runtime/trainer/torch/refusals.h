// LibTorch throws; nothing of it leaves this folder.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>

#include "tiering/status.h"

namespace penstock::trainer {

// What `function` gives, or why it did not: `engine` if that has refused something, else what was thrown.
template <typename Function>
auto without_exceptions(const Status* engine, Function function) -> decltype(function()) {
  auto refusal = [&](Code code, const std::string& why) {
    return engine != nullptr && !engine->ok() ? *engine : Status(code, "compute: " + why);
  };
  try {
    return function();
  } catch (const c10::OutOfMemoryError& error) {
    return refusal(Code::kDoesNotFit, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return refusal(Code::kEnvironment, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return refusal(Code::kDoesNotFit, "host memory is exhausted");
  } catch (const std::exception& error) {
    return refusal(Code::kEnvironment, error.what());
  }
}

}  // namespace penstock::trainer
