// AccessOrder is a race detector for work that is put on the streams of a device. Whoever puts an operation there says
// which bytes it reads and writes; events, and what the host has waited for, order operations. Two on the same bytes,
// one of which writes, must be ordered: that they happened to run in turn does not count.
//
// It judges when an operation is put, by a vector clock for each stream, and knows nothing of times. The host is one
// more such clock: what it puts anywhere follows what it has seen the end of, on whichever of its threads. So what it
// misses is an order that is wrong only where the host had not learnt of an end by chance.
//
// Any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace penstock::test {

class AccessOrder {
 public:
  using StreamHandle = const void*;  // as Stream has it

  struct Run {
    const void* data = nullptr;
    uint64_t bytes = 0;
  };

  // How far each stream had come at some point.
  class Moment {
   private:
    friend class AccessOrder;
    std::vector<uint64_t> times_;  // by number of stream
  };

  // The end of what is on the stream by now.
  Moment record(StreamHandle stream);
  // What is put on the stream from now on follows the moment.
  void make_wait(StreamHandle stream, const Moment& moment);
  // What is put on any stream from now on follows it: the host has seen that it was reached.
  void host_learned(const Moment& moment);

  // An operation is put on the stream: "aten::mm", in messages.
  void put(StreamHandle stream, const std::string& what, std::span<const Run> reads, std::span<const Run> writes);
  // The run is given back in the order of the stream: nobody touches it until forget().
  void give_back(StreamHandle stream, const Run& run);
  // The run means something else from now on.
  void forget(const Run& run);

  // What was out of order since the last call, each pair of operations once.
  std::vector<std::string> take_failures();
  // How many accesses were judged so far: the measure of a test that finds none.
  uint64_t accesses() const;

 private:
  struct Operation {
    std::string what;
    size_t stream = 0;
    uint64_t time = 0;  // of its stream
    bool gives_back = false;
  };
  using SharedOperation = std::shared_ptr<const Operation>;
  // A run of bytes with one history.
  struct Cell {
    uintptr_t end = 0;
    SharedOperation written;                 // last
    std::vector<SharedOperation> read = {};  // since, the last of each stream
  };
  using Cells = std::map<uintptr_t, Cell>;  // by first byte

  size_t number_of(StreamHandle stream);
  std::vector<uint64_t>& clock_of(size_t stream);
  SharedOperation begin(StreamHandle stream, const std::string& what, bool gives_back);
  void touch(const SharedOperation& by, const Run& run, bool writes);
  void expect_before(const SharedOperation& earlier, const SharedOperation& later, const Run& run, bool earlier_writes,
                     bool later_writes);
  Cells::iterator cut(uintptr_t at);
  std::string words_of(const Operation& operation) const;

  mutable std::mutex mutex_;
  // GUARDED_BY(mutex_)
  std::map<StreamHandle, size_t> numbers_;
  std::vector<std::vector<uint64_t>> clocks_;  // by stream: what is put there follows
  std::vector<uint64_t> host_;
  Cells cells_;
  std::map<std::string, uint64_t> failures_;
  uint64_t accesses_ = 0;
};

}  // namespace penstock::test
