// NcclCommunicator is one rank's end of a communicator. Its calls do not block: where NCCL has others to wait for, they
// look again and again whether to go on, so that a rank can be ended wherever it is.
//
// The calling thread's current device is the rank's. Used by one thread at a time.
#pragma once

#include <memory>
#include <span>

#include "runtime/engine/ranks/long_wait.h"
#include "runtime/engine/ranks/nccl_library.h"
#include "tiering/device.h"

namespace penstock::engine {

class NcclCommunicator {
 public:
  // All ranks together, with an id that one of them has made. `place`: its numbers.
  static Result<std::unique_ptr<NcclCommunicator>> make(std::shared_ptr<const NcclLibrary> library,
                                                        const nccl::UniqueId& id, const RankPlace& place,
                                                        LongWait wait);
  // Ends what is under way, by itself: ranks leave when they will, and whoever still waits for this one is ended by
  // other means.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  struct Message {
    enum class Way { send, receive };
    Way way = Way::send;
    uint32_t peer = 0;
    std::span<std::byte> bytes;
  };
  // Puts the messages on the stream, as a group: none of them waits for another. Between two ranks, what one sends
  // comes in the order in which the other receives, run by run of one length.
  Status put(std::span<const Message> messages, Stream stream, LongWait wait);
  // What has befallen it since.
  Status status() const;

 private:
  explicit NcclCommunicator(std::shared_ptr<const NcclLibrary> library) : library_(std::move(library)) {}
  Status settle(const std::string& what, LongWait& wait) const;

  const std::shared_ptr<const NcclLibrary> library_;
  nccl::Communicator* communicator_ = nullptr;
};

}  // namespace penstock::engine
