// Device is one accelerator: an arena of memory, copy engines, and kernels on it. Stream, Event and Copy are what its
// work is ordered by.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tiering/device_kernels.h"
#include "tiering/transfer.h"

namespace penstock {

// A queue of device work that runs in order, as a plain handle: CUDA's cudaStream_t, for instance the current stream of
// whoever computes on the device. On a host device the null stream is the calling thread itself: what it does is done
// when the call returns, and making it wait blocks it.
struct Stream {
  void* handle = nullptr;
  bool operator==(const Stream&) const = default;
};

// The point on a stream at which it was recorded: reached when everything put on the stream before has ended. Copies of
// an Event are the same point. An empty one has been reached. Events end before their device.
class Event {
 public:
  // For implementers of Device.
  class State {
   public:
    virtual ~State() = default;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }
  explicit operator bool() const { return state_ != nullptr; }

 private:
  std::shared_ptr<State> state_;
};

// A run of bytes of a copy, by its places in the two leases.
struct CopyRun {
  uint64_t source_offset_bytes = 0;
  uint64_t target_offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// A copy that was issued. The transfer's lease is the target; the source returns to its pool when the transfer ends.
// Other streams can be made to wait for `done` at once, long before the host learns that the transfer has ended.
struct Copy {
  Transfer transfer;
  Event done;
};

// How much of the caller's host memory the copy engines reach directly.
struct HostRegistration {
  enum class Extent {
    all,      // copies run at full rate beside the host
    windows,  // only in the windows; the rest goes through a small pinned buffer
    nothing,  // every copy does
  };
  Extent extent = Extent::nothing;
  uint64_t registered_bytes = 0;
  std::string explanation;  // for people, once: what was refused, and what runs instead; empty when nothing was
};

// What the planner must know about a device.
struct DeviceFacts {
  std::string name;  // "NVIDIA H200", "host memory"
  bool is_host = false;
  uint64_t memory_bytes = 0;
  uint64_t memory_free_bytes = 0;  // when the device was opened, before the arena was taken
  uint32_t copy_engines = 0;       // 2 or more: both directions at once
  // Integrated (GB10): a copy moves bytes within one memory, and device bytes are host bytes.
  bool shares_host_memory = false;
  bool reads_pageable_memory = false;  // coherent (GH200, GB10): the device reaches host memory that nobody registered
  bool reaches_peers = false;          // may copy from and to another GPU of this machine
  int numa_node = -1;                  // of the host memory nearest to it; -1: unknown or no such thing
  uint32_t compute_capability = 0;     // 90 for 9.0
  uint64_t host_to_device_bytes_per_s = 0;  // as stated by whoever throttles it; 0: measure
  uint64_t device_to_host_bytes_per_s = 0;
};

// Everything here is asynchronous: it is put on a stream and the host goes on. Copies run on streams of the device's
// own, one for each direction, so that both directions, the device's kernels and the user's stream overlap.
//
// Every copy ends exactly once; until then the device holds both leases. Ends are found by poll(), in any order.
//
// Made, used and destroyed by one thread, except launch(), record() and make_wait(), which any thread may call.
// Destroying it waits for what was issued.
class Device : public TransferDriver {
 public:
  // The arena: the budget, to the byte, reserved when the device was opened and never grown. Its address is a multiple
  // of kAlignmentBytes. Cut it with BufferArea or BufferPool; only the device may follow its addresses.
  virtual std::span<std::byte> memory() = 0;

  // Lets the copy engines reach the caller's arena: all of it, or failing that each window, or nothing. Refusals are
  // not errors, since every copy works without. REQUIRES: called once, before any copy; the windows lie inside `arena`,
  // which outlives the device.
  virtual HostRegistration register_host_memory(std::span<std::byte> arena,
                                                std::span<const std::span<std::byte>> windows) = 0;

  // Copies the runs once the events in `after` have been reached. Tiers give the direction; at least one is the device.
  // Of places that are to live on, Lease::also() is passed.
  // REQUIRES: runs lie inside the leases; no two overlap in the target.
  virtual Copy copy(std::span<const CopyRun> runs, Lease source, Lease target, std::span<const Event> after) = 0;
  // The whole of two leases of one size.
  Copy copy(Lease source, Lease target, std::span<const Event> after = {}) {
    CopyRun whole{0, 0, source.size_bytes()};
    return copy({&whole, 1}, std::move(source), std::move(target), after);
  }

  // The device's own stream for kernels that nobody else orders.
  virtual Stream kernel_stream() = 0;
  // Puts a kernel on `stream`. REQUIRES: its addresses are this device's, and stay leased until an event recorded on
  // `stream` afterwards has been reached.
  virtual Status launch(const Kernel& kernel, Stream stream) = 0;

  // The point that `stream` has been filled to by now.
  virtual Result<Event> record(Stream stream) = 0;
  // What is put on `stream` from now on starts after `event`.
  virtual Status make_wait(Stream stream, const Event& event) = 0;
  virtual Result<bool> reached(const Event& event) = 0;
  // Makes completion_fd() readable once `event` has been reached. Several are told in the order of the calls.
  virtual Status wake_at(const Event& event) = 0;

  // Makes this the calling thread's device, for libraries that ask the thread for it. Any thread may call it.
  virtual Status enter_thread() = 0;

  // Ends what has ended, without blocking; functions given to then() run inside. Returns how many transfers ended.
  virtual size_t poll() = 0;
  // As poll(), but blocks until something has ended, nothing is left to wait for, or `timeout` has passed.
  virtual size_t wait(std::chrono::nanoseconds timeout) = 0;
  // Readable when poll() may have something to end. A device that fails may fall silent: poll() at the watchdog's
  // ticks too, and the copies under way end with its refusal.
  virtual int completion_fd() const = 0;

  virtual const DeviceFacts& facts() const = 0;
  // What really runs and why, for people: "NVIDIA H200, 2.00 GiB arena, host memory registered".
  virtual std::string description() const = 0;
};

}  // namespace penstock
