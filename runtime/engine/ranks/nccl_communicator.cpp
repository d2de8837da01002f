#include "runtime/engine/ranks/nccl_communicator.h"

namespace penstock::engine {

using nccl::Answer;

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::make(std::shared_ptr<const NcclLibrary> library,
                                                                 const nccl::UniqueId& id, const RankPlace& place,
                                                                 LongWait wait) {
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(std::move(library)));
  const NcclLibrary& nccl = *made->library_;
  nccl::Config config;
  const Answer begun = nccl.call().init_rank(&made->communicator_, static_cast<int>(place.ranks), id,
                                             static_cast<int>(place.rank), &config);
  const std::string what = text("communicator of ", place.ranks, " ranks");
  PENSTOCK_TRY(nccl.outcome(what, begun, nullptr));
  PENSTOCK_TRY(made->settle(what, wait));
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  if (communicator_ != nullptr) (void)library_->call().abort(communicator_);
}

Status NcclCommunicator::put(std::span<const Message> messages, Stream stream, LongWait wait) {
  const nccl::Functions& call = library_->call();
  PENSTOCK_TRY(library_->outcome("begin a group", call.group_start(), communicator_));
  Status refused;
  for (const Message& message : messages) {
    const bool sends = message.way == Message::Way::send;
    const Answer answer = (sends ? call.send(message.bytes.data(), message.bytes.size(), nccl::DataType::uint8,
                                             static_cast<int>(message.peer), communicator_, stream.handle)
                                 : call.receive(message.bytes.data(), message.bytes.size(), nccl::DataType::uint8,
                                                static_cast<int>(message.peer), communicator_, stream.handle));
    refused = library_->outcome(
        text(sends ? "send " : "receive ", message.bytes.size(), " B ", sends ? "to" : "from", " rank ", message.peer),
        answer, communicator_);
    if (!refused.ok()) break;
  }
  // Also where one was refused: the thread is in a group until its end.
  const Answer ended = call.group_end();
  if (!refused.ok()) return refused;
  const std::string what = text("a group of ", messages.size(), " messages");
  PENSTOCK_TRY(library_->outcome(what, ended, communicator_));
  // Until then nothing is on the stream.
  return settle(what, wait);
}

Status NcclCommunicator::status() const {
  Answer state = Answer::success;
  PENSTOCK_TRY(
      library_->outcome("ask for errors", library_->call().get_async_error(communicator_, &state), communicator_));
  return library_->outcome("messages", state, communicator_);
}

Status NcclCommunicator::settle(const std::string& what, LongWait& wait) const {
  while (true) {
    Answer state = Answer::success;
    PENSTOCK_TRY(library_->outcome(what, library_->call().get_async_error(communicator_, &state), communicator_));
    if (state != Answer::in_progress) return library_->outcome(what, state, communicator_);
    PENSTOCK_TRY(wait.go_on());
  }
}

}  // namespace penstock::engine
