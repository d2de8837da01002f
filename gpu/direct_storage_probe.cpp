#include "gpu/direct_storage_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::gpu {
namespace {

constexpr int kRounds = 5;
constexpr int kDirectThreads = 4;  // a call of cuFile blocks, so several must be under way

class Probe {
 public:
  explicit Probe(const DirectStorageWays& ways)
      : ways_(ways),
        piece_bytes_(ways.host.piece_bytes()),
        pieces_(std::min<uint64_t>(ways.file.size_bytes(), ways.device.memory().size()) / piece_bytes_) {}

  uint64_t bytes() const { return pieces_ * piece_bytes_; }

  // Reads ahead as far as the pool goes, each piece copied on as it arrives.
  Status through_host() {
    std::deque<Transfer> reads, copies;
    uint64_t issued = 0, copied = 0;
    while (copied < pieces_) {
      for (std::optional<Lease> lease; issued < pieces_ && (lease = ways_.host.try_lease()); ++issued) {
        reads.push_back(ways_.engine.read(ways_.file, issued * piece_bytes_, std::move(*lease)));
      }
      if (!reads.empty()) {
        PENSTOCK_TRY_ASSIGN(arrived, std::move(reads.front()).wait());
        reads.pop_front();
        copies.push_back(ways_.device.copy(std::move(arrived), place(copied++)).transfer);
      } else {
        PENSTOCK_TRY(std::move(copies.front()).wait().status());
        copies.pop_front();
      }
    }
    for (Transfer& copy : copies) PENSTOCK_TRY(std::move(copy).wait().status());
    return Status();
  }

  Status directly(DirectStorage& storage) {
    std::atomic<uint64_t> next = 0;
    std::mutex mutex;
    Status first;
    auto work = [&] {
      const Status entered = ways_.device.enter_thread();
      for (uint64_t piece; (piece = next++) < pieces_;) {
        Status status = entered.ok() ? storage.read(ways_.file, piece * piece_bytes_,
                                                    ways_.device.memory().subspan(piece * piece_bytes_, piece_bytes_))
                                     : entered;
        if (status.ok()) continue;
        next = pieces_;
        std::lock_guard lock(mutex);
        if (first.ok()) first = status;
      }
    };
    std::vector<std::jthread> threads;
    for (int i = 0; i < kDirectThreads; ++i) threads.emplace_back(work);
    threads.clear();  // each has ended
    return first;
  }

  // What the arena holds now.
  Result<std::vector<std::byte>> contents() {
    std::vector<std::byte> bytes_of(bytes());
    Lease target = Lease::over(Tier::host, bytes_of);
    PENSTOCK_TRY(std::move(ways_.device.copy(whole(), std::move(target)).transfer).wait().status());
    return bytes_of;
  }

  Status clear() {
    PENSTOCK_TRY(ways_.device.launch(kernel::Fill{ways_.device.memory().data(), bytes(), 0xdb}, stream()));
    PENSTOCK_TRY_ASSIGN(cleared, ways_.device.record(stream()));
    while (true) {
      PENSTOCK_TRY_ASSIGN(reached, ways_.device.reached(cleared));
      if (reached) return Status();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  Stream stream() { return ways_.device.kernel_stream(); }
  Lease whole() { return Lease::over(Tier::device, ways_.device.memory().first(bytes())); }
  Lease place(uint64_t piece) {
    return Lease::over(Tier::device, ways_.device.memory().subspan(piece * piece_bytes_, piece_bytes_));
  }

  const DirectStorageWays& ways_;
  const uint64_t piece_bytes_, pieces_;
};

template <typename Work>
Result<double> bytes_per_s(uint64_t bytes, const Work& work) {
  auto start = std::chrono::steady_clock::now();
  PENSTOCK_TRY(work());
  return static_cast<double>(bytes) / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string gigabytes(double bytes_per_s) {
  char out[32];
  std::snprintf(out, sizeof out, "%.2f", 1e-9 * bytes_per_s);
  return out;
}

}  // namespace

Result<DirectStorageProbe> probe_direct_storage(const DirectStorageWays& ways) {
  Probe probe(ways);
  CHECK(probe.bytes() > 0, "file, arena and pieces leave nothing to probe with");
  DirectStorageProbe out;
  auto unused = [&](const Status& why) {
    out.direct_bytes_per_s = 0;
    out.explanation = why.message() + "; drives reach the GPU through pinned host memory";
    return out;
  };
  PENSTOCK_TRY(probe.through_host());
  PENSTOCK_TRY_ASSIGN(wanted, probe.contents());
  Result<std::unique_ptr<DirectStorage>> storage = DirectStorage::open(ways.library);
  if (!storage.ok()) return unused(storage.status());

  std::vector<double> direct, bounce;
  for (int round = 0; round < kRounds; ++round) {
    PENSTOCK_TRY_ASSIGN(through_host, bytes_per_s(probe.bytes(), [&] { return probe.through_host(); }));
    bounce.push_back(through_host);
    PENSTOCK_TRY(probe.clear());
    Result<double> directly = bytes_per_s(probe.bytes(), [&] { return probe.directly(**storage); });
    if (!directly.ok()) return unused(directly.status());
    direct.push_back(*directly);
    PENSTOCK_TRY_ASSIGN(arrived, probe.contents());
    if (arrived != wanted) {
      return unused(Status(Code::kComparison, text("GPUDirect Storage brought other bytes of ", ways.file.path())));
    }
  }
  out.direct_bytes_per_s = median(direct);
  out.bounce_bytes_per_s = median(bounce);
  out.is_used = out.direct_bytes_per_s >= kDirectStorageGain * out.bounce_bytes_per_s;
  out.explanation = text(
      "GPUDirect Storage: ", gigabytes(out.direct_bytes_per_s), " GB/s against ", gigabytes(out.bounce_bytes_per_s),
      " through pinned host memory: ", out.is_used ? "used" : "not used, since it gains less than a tenth");
  return out;
}

}  // namespace penstock::gpu
