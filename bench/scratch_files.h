// Shared by the benchmarks of file I/O: a written scratch file in a folder, an engine and memory for it, and the rate
// of a stream of transfers.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aio/direct_file.h"
#include "aio/host_arena.h"
#include "aio/make_io_engine.h"
#include "aio/write_once.h"

namespace penstock::bench {

// Stops a benchmark that the world refuses.
template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "penstock: %s\ntry: %s\n", result.status().message().c_str(), result.status().remedy().c_str());
  std::exit(static_cast<int>(result.status().code()));
}

inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "penstock: %s\ntry: %s\n", status.message().c_str(), status.remedy().c_str());
  std::exit(static_cast<int>(status.code()));
}

// Bytes that no drive can make smaller.
inline void fill_incompressible(uint64_t offset_bytes, std::span<std::byte> block) {
  uint64_t word = offset_bytes * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i + 8 <= block.size(); i += 8) {
    word = word * 6364136223846793005 + 1442695040888963407;
    const uint64_t mixed = word ^ (word >> 29);
    __builtin_memcpy(&block[i], &mixed, 8);
  }
}

inline std::unique_ptr<aio::DirectFile> scratch_file(const std::string& folder, uint64_t bytes, IoEngine& engine,
                                                     BufferPool& pool) {
  const std::string path = folder + "/penstock-bench-" + std::to_string(getpid());
  std::unique_ptr<aio::DirectFile> file = must(aio::DirectFile::create(path, bytes));
  must(aio::write_once(*file, engine, pool, fill_incompressible));
  engine.register_file(*file);
  return file;
}

// Starts one transfer if it can have what it needs, hands `ended` to it, and returns its bytes; 0 if it has to wait.
using Ended = std::function<void(Result<Lease>)>;
using StartOne = std::function<uint64_t(const Ended& ended)>;

// Bytes a second (10^9) of transfers started as fast as `start_one` lets them, over about `seconds`.
inline double stream_gbps(IoEngine& engine, double seconds, const StartOne& start_one) {
  using Clock = std::chrono::steady_clock;
  uint64_t under_way = 0, started_bytes = 0;
  const Ended ended = [&](Result<Lease> end) {
    must(end.status());
    --under_way;
  };
  const auto begin = Clock::now();
  const auto until = begin + std::chrono::duration<double>(seconds);
  while (Clock::now() < until) {
    while (const uint64_t bytes = start_one(ended)) {
      ++under_way;
      started_bytes += bytes;
      if (Clock::now() >= until) break;
    }
    engine.wait(std::chrono::seconds(1));
  }
  // To the end, so that every byte counted has moved in the time counted.
  engine.wait_until([&] { return under_way == 0; });
  return static_cast<double>(started_bytes) / std::chrono::duration<double>(Clock::now() - begin).count() / 1e9;
}

}  // namespace penstock::bench
