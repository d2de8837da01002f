// Every parser of outside bytes under seeded damage to valid inputs. A failure, a death included, names target and
// seed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "tests/fuzz/target.h"
#include "tests/support/instrumented.h"
#include "tests/support/watchdog.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/common_interface_defs.h>

// Undefined behaviour is a death like any other, so that it is told what was being tried.
extern "C" __attribute__((visibility("default"))) const char* __ubsan_default_options() {
  return "abort_on_error=1:print_stacktrace=1";
}
#endif

namespace penstock::fuzz {
namespace {

// What is being tried, for whoever ends the process. Signal handlers reach only what is global.
char under_way[128] = "";

void say_what_was_under_way() { (void)!write(STDERR_FILENO, under_way, std::strlen(under_way)); }

void on_death(int signal) {
  say_what_was_under_way();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class EveryParser : public testing::TestWithParam<const Target*> {
 protected:
  EveryParser() {
    std::signal(SIGABRT, on_death);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    __sanitizer_set_death_callback(say_what_was_under_way);
#else
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, on_death);
#endif
  }
  ~EveryParser() override { std::signal(SIGABRT, SIG_DFL); }

  std::string try_seeded(const Bytes& input, const char* what, uint64_t seed) {
    std::snprintf(under_way, sizeof(under_way), "fuzz target %s: %s %llu\n", GetParam()->name.data(), what,
                  static_cast<unsigned long long>(seed));
    return try_input(*GetParam(), input);
  }
};

TEST_P(EveryParser, WithstandsAnyBytes) {
  const Target& target = *GetParam();
  Watchdog watchdog(std::chrono::minutes(5), std::string(target.name));
  const std::vector<Bytes> seeds = target.seeds();
  for (size_t i = 0; i < seeds.size(); ++i) {
    ASSERT_EQ(try_seeded(seeds[i], "first input", i), "")
        << "first input " << i << (target.words.empty() ? "" : ": " + text_of(seeds[i]));
  }
  for (uint64_t seed = 1; seed <= test::fewer(target.rounds); ++seed) {
    const Bytes input = mutated(target, seeds, seeds[seed % seeds.size()], seed);
    ASSERT_EQ(try_seeded(input, "seed", seed), "")
        << "seed " << seed << (target.words.empty() ? "" : ": " + text_of(input));
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, EveryParser, testing::ValuesIn(kTargets),
                         [](const auto& each) { return std::string(each.param->name); });

}  // namespace
}  // namespace penstock::fuzz
