#include "tiering/check.h"

#include <cstdio>
#include <cstdlib>

namespace penstock {

void check_failed(const char* file, int line, const char* condition, const std::string& sentence) {
  std::fprintf(stderr, "penstock: %s:%d: CHECK(%s) failed%s%s\n", file, line, condition, sentence.empty() ? "" : ": ",
               sentence.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace penstock
