#include "runtime/engine/ranks/rank_device.h"

#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "tiering/check.h"

namespace penstock::engine {
namespace {

constexpr std::chrono::microseconds kPollPause{20};  // little beside what a pass takes

// The first refusal of those that all have ended.
Status wait_for_all(std::vector<Transfer> transfers) {
  Status ended;
  for (Transfer& transfer : transfers) {
    const Status status = std::move(transfer).wait().status();
    if (ended.ok()) ended = status;
  }
  return ended;
}

}  // namespace

Result<std::unique_ptr<RankDevice>> RankDevice::open(const MakeDevice& make, uint64_t bytes,
                                                     std::span<std::byte> host) {
  PENSTOCK_TRY_ASSIGN(device, make(bytes));
  device->register_host_memory(host, {});  // every copy works without
  const std::span<std::byte> memory = device->memory();
  return std::unique_ptr<RankDevice>(new RankDevice(std::move(device), memory, host));
}

Result<std::unique_ptr<RankDevice>> RankDevice::open_over(const MakeDevice& make, std::span<std::byte> memory) {
  PENSTOCK_TRY_ASSIGN(device, make(0));
  return std::unique_ptr<RankDevice>(new RankDevice(std::move(device), memory, {}));
}

RankDevice::~RankDevice() {
  (void)finish_uploads();
  for (const Event& reader : readers_) (void)wait_for(reader);
}

Status RankDevice::wait_for(const Event& event) const {
  while (true) {
    PENSTOCK_TRY_ASSIGN(is_over, device_->reached(event));
    if (is_over) return Status();
    std::this_thread::sleep_for(kPollPause);
  }
}

Status RankDevice::download(std::span<const Download> runs, const Event& written) {
  forget_those_that_have_read();
  std::vector<Transfer> downloads;
  std::deque<Buffer> lenders;  // the values are the engine's, or the trainer's, who both wait for this to return
  for (const Download& run : runs) {
    const std::span<std::byte> values{const_cast<std::byte*>(run.device.data()), run.device.size()};  // only read
    Lease source = lenders.emplace_back(Buffer::borrowed(Tier::device, values)).lend();
    Lease target = lenders.emplace_back(Buffer::borrowed(Tier::host, run.host)).lend();
    downloads.push_back(device_->copy(std::move(source), std::move(target), {&written, 1}).transfer);
  }
  return wait_for_all(std::move(downloads));
}

Status RankDevice::copy_within(std::span<const Within> runs, const Event& written, std::span<const Event> readers) {
  forget_those_that_have_read();
  std::vector<Event> after(readers.begin(), readers.end());
  after.push_back(written);
  std::vector<Transfer> copies;
  for (const Within& run : runs) {
    const std::span<std::byte> source{const_cast<std::byte*>(run.source.data()), run.source.size()};  // only read
    // The engine's, who waits for this to return.
    Lease from = Lease::over(Tier::device, source), into = Lease::over(Tier::device, run.target);
    copies.push_back(device_->copy(std::move(from), std::move(into), after).transfer);
  }
  PENSTOCK_TRY(wait_for_all(std::move(copies)));
  for (const Event& reader : readers) PENSTOCK_TRY(wait_for(reader));
  return Status();
}

// Through a place of its own: whose memory the values lie in, a copy engine need not know.
Status RankDevice::download_gradient(std::span<const std::byte> values, Dtype dtype, std::span<std::byte> host,
                                     Stream stream) {
  const std::span<std::byte> all = memory_;
  CHECK(values.size() <= all.size(), "a gradient of ", values.size(), " B in ", all.size(), " B");
  if (values.empty()) return Status();
  const std::span<std::byte> place = all.first(values.size());
  PENSTOCK_TRY(device_->launch(kernel::Cast{values.data(), place.data(), dtype, dtype, values.size() / bytes_of(dtype)},
                               stream));
  PENSTOCK_TRY_ASSIGN(written, device_->record(stream));
  const Download down{place, host};
  return download({&down, 1}, written);
}

Result<std::vector<Event>> RankDevice::upload(const std::vector<Run>& runs, std::span<const Event> readers) {
  forget_those_that_have_read();
  std::vector<Event> uploaded;
  for (const Run& run : runs) {
    Copy copy = device_->copy(host_.lend(run.host), arena_.lend(run.device), readers);
    uploads_.push_back(std::move(copy.transfer));
    uploaded.push_back(std::move(copy.done));
  }
  return uploaded;
}

Status RankDevice::finish_uploads() { return wait_for_all(std::exchange(uploads_, {})); }

Status RankDevice::make_wait(Stream stream, const std::vector<Event>& uploaded) {
  for (const Event& event : uploaded) PENSTOCK_TRY(device_->make_wait(stream, event));
  return Status();
}

Status RankDevice::end_pass(Stream stream) {
  PENSTOCK_TRY_ASSIGN(read, device_->record(stream));
  std::lock_guard lock(mutex_);
  readers_.push_back(std::move(read));
  return Status();
}

std::vector<Event> RankDevice::readers() const {
  std::lock_guard lock(mutex_);
  return readers_;
}

void RankDevice::forget_those_that_have_read() {
  std::lock_guard lock(mutex_);
  std::erase_if(readers_, [this](const Event& reader) {
    const Result<bool> reached = device_->reached(reader);
    return reached.ok() && *reached;
  });
}

}  // namespace penstock::engine
