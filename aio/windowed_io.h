// WindowedIo carries bytes through a fixed number of windows: the loop that reads ahead, uses and writes behind, with
// as many requests at a time as there are windows.
//
//   WindowedIo io(engine, windows);
//   for (const Part& part : parts) {
//     PENSTOCK_TRY_ASSIGN(window, io.free_window());
//     io.read(part.extents, std::move(window), [&](Result<Lease> read) { ...; io.write(...); return Status(); });
//   }
//   return io.finish();
//
// The function given with a request is called exactly once, when the request has ended, in the order in which they end:
// inside free_window(), finish() or the destructor, but never inside the engine's poll(). So it may begin more requests
// and wait for others.
//
// The first refusal that such a function returns ends the loop: free_window() and finish() return it. Reads that end
// after it are handed on as refused with it, so that nobody goes on with their bytes; writes tell how they ended.
//
// Used by the engine's thread. Engine and windows outlive it; the destructor waits for what is under way.
#pragma once

#include <deque>
#include <functional>
#include <span>

#include "tiering/io_engine.h"

namespace penstock::aio {

class WindowedIo {
 public:
  using Ended = std::function<Status(Result<Lease> window)>;

  WindowedIo(IoEngine& engine, BufferPool& windows) : engine_(engine), windows_(windows) {}
  ~WindowedIo() { (void)finish(); }
  WindowedIo(const WindowedIo&) = delete;
  WindowedIo& operator=(const WindowedIo&) = delete;

  // Blocks until a window is free. REQUIRES: one is, or a request is under way that will free one.
  Result<Lease> free_window();
  void read(std::span<const Extent> extents, Lease window, Ended ended);
  // Without a function a write that fails is a refusal, and one that ends well just frees its window.
  void write(std::span<const Extent> extents, Lease window, Ended ended = {});
  // Blocks until nothing is under way.
  Status finish();

 private:
  enum class Kind { read, write };
  struct EndedRequest {
    Kind kind;
    Ended then;
    Result<Lease> window;
  };

  void await(Transfer transfer, Kind kind, Ended ended);
  void hand_on_next();
  void wait_for_an_end();
  void refuse(const Status& why);

  IoEngine& engine_;
  BufferPool& windows_;
  size_t under_way_ = 0;
  std::deque<EndedRequest> ended_;
  Status refusal_;
};

}  // namespace penstock::aio
