// CHECK stops the program with a sentence when we have made a mistake, in every build. DCHECK does so in debug and
// sanitizer builds only and is for hot loops. Neither may have an effect inside. What the world refuses is a Status.
#pragma once

#include <sstream>
#include <string>

namespace penstock {

// Joins its arguments into one string, as a stream would print them.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  ((void)(out << parts), ...);
  return std::move(out).str();
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& sentence);

}  // namespace penstock

#define CHECK(condition, ...)                                                                  \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::penstock::check_failed(__FILE__, __LINE__, #condition, ::penstock::text(__VA_ARGS__)); \
  } while (false)

#if defined(NDEBUG) && !defined(PENSTOCK_DCHECKS)
#define DCHECK(condition, ...)                              \
  do {                                                      \
    if (false) CHECK(condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
#else
#define DCHECK(condition, ...) CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif
