#include "runtime/engine/ranks/rank_device.h"

#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "tiering/check.h"

namespace penstock::engine {
namespace {

constexpr std::chrono::milliseconds kPollPause{1};

}  // namespace

Result<std::unique_ptr<RankDevice>> RankDevice::open(const MakeDevice& make, uint64_t bytes,
                                                     std::span<std::byte> host) {
  PENSTOCK_TRY_ASSIGN(device, make(bytes));
  device->register_host_memory(host, {});  // every copy works without
  return std::unique_ptr<RankDevice>(new RankDevice(std::move(device), host));
}

RankDevice::~RankDevice() {
  (void)finish_uploads();
  for (const Event& reader : readers_) {
    for (Result<bool> reached = false; reached.ok() && !*reached; reached = device_->reached(reader)) {
      std::this_thread::sleep_for(kPollPause);
    }
  }
}

Status RankDevice::download(std::span<const Download> runs, const Event& written) {
  std::vector<Transfer> downloads;
  std::deque<Buffer> lenders;  // the values are the engine's, or the trainer's, who both wait for this to return
  for (const Download& run : runs) {
    const std::span<std::byte> values{const_cast<std::byte*>(run.device.data()), run.device.size()};  // only read
    Lease source = lenders.emplace_back(Buffer::borrowed(Tier::device, values)).lend();
    Lease target = lenders.emplace_back(Buffer::borrowed(Tier::host, run.host)).lend();
    downloads.push_back(device_->copy(std::move(source), std::move(target), {&written, 1}).transfer);
  }
  Status ended;
  for (Transfer& download : downloads) {
    const Status status = std::move(download).wait().status();
    if (ended.ok()) ended = status;
  }
  return ended;
}

// Through a place of its own: whose memory the values lie in, a copy engine need not know.
Status RankDevice::download_gradient(std::span<const std::byte> values, Dtype dtype, std::span<std::byte> host,
                                     Stream stream) {
  const std::span<std::byte> all = device_->memory();
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

Status RankDevice::finish_uploads() {
  Status ended;
  for (Transfer& upload : std::exchange(uploads_, {})) {
    const Status status = std::move(upload).wait().status();
    if (ended.ok()) ended = status;
  }
  return ended;
}

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
