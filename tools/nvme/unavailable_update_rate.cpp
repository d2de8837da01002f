// For a build with PENSTOCK_STEPS=OFF: the rate of passes over memory in place, which updates nearly reach.
#include <algorithm>
#include <chrono>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "tools/nvme/statistics.h"
#include "tools/nvme/update_rate.h"
#include "tools/system/limits.h"

namespace penstock::tools {
namespace {

constexpr int kRounds = 5;

void pass_over(std::span<uint64_t> words) {
  for (uint64_t& word : words) word = word * 3 + 1;
}

}  // namespace

Result<double> measure_update_gbps(const StateForm&, uint32_t threads, uint64_t memory_bytes) {
  const size_t parts = threads > 0 ? threads : usable_processors();
  const size_t part_words = std::min(memory_bytes, kUpdateMemoryBytes) / sizeof(uint64_t) / parts;
  std::vector<uint64_t> words(parts * part_words, 1);
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::jthread> passes;
    try {
      for (size_t part = 0; part < parts; ++part) {
        passes.emplace_back(pass_over, std::span(words).subspan(part * part_words, part_words));
      }
    } catch (const std::system_error& error) {
      return thread_status(text("start update threads: ", passes.size(), " of ", parts), error.code().value());
    }
    passes.clear();  // waits for them
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return static_cast<double>(2 * words.size() * sizeof(uint64_t)) / median(seconds) / 1e9;
}

}  // namespace penstock::tools
