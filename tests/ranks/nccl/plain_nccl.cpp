// The calls of NCCL that Penstock makes, carried out among processes by sockets: a library that is loaded as the real
// one is, beside the CUDA runtime in plain memory, on whose streams a group of messages runs as a host function.
//
// As of the real one, a call may return before it is done, and what a stream shows then is not yet the group; whoever
// waits for a rank that is dead waits until it aborts. Stricter than the real one where that finds mistakes: messages
// of other lengths than the peer's, memory that is not the device's, calls of a communicator that is not ready or was
// aborted, communicators that are left at the end: each ends the process with a sentence on standard output.
//
// What it is told, by the environment: PLAIN_NCCL_SEED draws delays (0: none); PLAIN_NCCL_VERSION, what it says of
// itself; PLAIN_NCCL_REFUSES=CALL:RANK; PLAIN_NCCL_STUCK=RANK:GROUP, a group that never moves, counted from 1;
// PLAIN_NCCL_TELLS=1: the death of a peer is an error of the communicator's.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/ranks/nccl_library.h"

using penstock::engine::nccl::Answer;
using penstock::engine::nccl::Communicator;
using penstock::engine::nccl::Config;
using penstock::engine::nccl::DataType;
using penstock::engine::nccl::UniqueId;

namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr int kLooksEveryMs = 5;  // whether it was aborted

[[noreturn]] void misuse(const std::string& what) {
  std::printf("plain NCCL: %s\n", what.c_str());
  std::fflush(stdout);
  ::_exit(3);
}

std::string told(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

struct Message {
  bool sends = false;
  int peer = 0;
  std::byte* bytes = nullptr;
  size_t count = 0;
};

// What goes before a message's bytes.
struct Head {
  uint64_t number = 0;  // among those between two ranks, in one direction
  uint64_t count = 0;
};

struct Group {
  Communicator* of = nullptr;
  uint64_t number = 0;
  std::vector<Message> messages;
  cudaStream_t stream = nullptr;
};

}  // namespace

namespace penstock::engine::nccl {

struct Communicator {
  int rank = 0, ranks = 0;
  std::string name;
  std::vector<int> sockets;  // by rank
  std::vector<uint64_t> sent, received;
  std::atomic<Answer> state = Answer::in_progress;
  std::atomic<bool> aborted = false;
  // The caller's alone.
  std::thread meeting, issuing;
  uint64_t groups = 0;
  std::mutex mutex;
  std::condition_variable changed;
  int under_way = 0;      // GUARDED_BY(mutex): groups on streams
  std::mt19937_64 draws;  // GUARDED_BY(mutex)
  bool delays = false;

  void delay(uint64_t at_most_us) {
    uint64_t drawn = 0;
    {
      std::lock_guard lock(mutex);
      drawn = draws();
    }
    if (delays && drawn % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn / 3 % at_most_us));
  }
  bool draws_a_later_end() {
    std::lock_guard lock(mutex);
    return delays && draws() % 2 == 0;
  }
};

}  // namespace penstock::engine::nccl

namespace {

std::mutex communicators_mutex;
std::set<Communicator*> communicators;  // GUARDED_BY(communicators_mutex): those that were not aborted

thread_local int group_depth = 0;
thread_local std::unique_ptr<Group> open_group;

struct AtTheEnd {
  ~AtTheEnd() {
    if (!communicators.empty()) misuse("communicators that nobody ended: " + std::to_string(communicators.size()));
  }
} at_the_end;

void expect_known(Communicator* which, const char* call) {
  std::lock_guard lock(communicators_mutex);
  if (!communicators.contains(which)) misuse(std::string(call) + " of a communicator that is none, or was aborted");
}

bool refused(const char* call, int rank) {
  return told("PLAIN_NCCL_REFUSES") == std::string(call) + ":" + std::to_string(rank);
}

sockaddr_un address_of(const std::string& name, int rank, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string all = name + "." + std::to_string(rank);
  std::memcpy(address.sun_path + 1, all.data(), all.size());  // begins with a zero: no name in any file system
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + all.size());
  return address;
}

// Whether the descriptor became ready before the communicator was aborted.
bool ready(const Communicator& c, int descriptor, short events) {
  pollfd look{descriptor, events, 0};
  while (!c.aborted) {
    if (::poll(&look, 1, kLooksEveryMs) > 0) return true;
  }
  return false;
}

// Connects with all: those of lower rank by calling them, and the others call.
void meet(Communicator& c) {
  c.delay(20'000);
  const int listening = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  sockaddr_un here = address_of(c.name, c.rank, length);
  if (::bind(listening, reinterpret_cast<sockaddr*>(&here), length) != 0 || ::listen(listening, c.ranks) != 0) {
    misuse("two of one rank");
  }
  for (int other = 0; other < c.rank && !c.aborted; ++other) {
    const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un there = address_of(c.name, other, length);
    while (!c.aborted && ::connect(made, reinterpret_cast<sockaddr*>(&there), length) != 0) {
      std::this_thread::sleep_for(Milliseconds(1));
    }
    (void)!::write(made, &c.rank, sizeof c.rank);
    c.sockets[static_cast<size_t>(other)] = made;
  }
  for (int missing = c.ranks - 1 - c.rank; missing > 0 && ready(c, listening, POLLIN); --missing) {
    const int made = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    int other = 0;
    if (!ready(c, made, POLLIN) || ::read(made, &other, sizeof other) != sizeof other) break;
    c.sockets[static_cast<size_t>(other)] = made;
  }
  ::close(listening);
  if (!c.aborted) c.state = refused("meeting", c.rank) ? Answer::system_error : Answer::success;
}

// One direction of what is between two ranks.
struct Lane {
  std::deque<Message> messages;
  Head head;
  size_t at = 0;  // bytes of the head and the message that have passed
};

class Running {
 public:
  explicit Running(const Group& group) : c_(*group.of) {
    for (const Message& message : group.messages) {
      (message.sends ? sends_ : receives_)[message.peer].messages.push_back(message);
    }
  }

  // Until all have passed, or it was aborted.
  void run() {
    pass_to_itself();
    while (!c_.aborted && !is_over()) {
      std::vector<pollfd> looks;
      std::vector<int> peers;
      for (int peer = 0; peer < c_.ranks; ++peer) {
        const short events =
            static_cast<short>((has_more(receives_, peer) ? POLLIN : 0) | (has_more(sends_, peer) ? POLLOUT : 0));
        if (events == 0) continue;
        looks.push_back({c_.sockets[static_cast<size_t>(peer)], events, 0});
        peers.push_back(peer);
      }
      ::poll(looks.data(), looks.size(), kLooksEveryMs);
      for (size_t i = 0; i < looks.size(); ++i) {
        if ((looks[i].revents & POLLOUT) != 0) send(peers[i]);
        if ((looks[i].revents & (POLLIN | POLLHUP)) != 0) receive(peers[i]);
      }
    }
  }

 private:
  static bool has_more(const std::map<int, Lane>& lanes, int peer) {
    const auto lane = lanes.find(peer);
    return lane != lanes.end() && !lane->second.messages.empty();
  }
  static bool is_over(const std::map<int, Lane>& lanes) {
    return std::all_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.second.messages.empty(); });
  }
  bool is_over() const { return is_over(sends_) && is_over(receives_); }

  void pass_to_itself() {
    std::deque<Message>&from = sends_[c_.rank].messages, &into = receives_[c_.rank].messages;
    if (from.size() != into.size()) misuse("a rank sends itself what it does not receive");
    for (size_t i = 0; i < from.size(); ++i) {
      expect_equal(c_.rank, from[i].count, into[i].count);
      std::memmove(into[i].bytes, from[i].bytes, from[i].count);
    }
    from.clear();
    into.clear();
  }
  void expect_equal(int peer, uint64_t given, uint64_t expected) const {
    if (given == expected) return;
    misuse("rank " + std::to_string(peer) + " sends " + std::to_string(given) + " B where rank " +
           std::to_string(c_.rank) + " expects " + std::to_string(expected) + " B");
  }

  void send(int peer) {
    Lane& lane = sends_[peer];
    const Message& message = lane.messages.front();
    if (lane.at == 0) lane.head = {++c_.sent[static_cast<size_t>(peer)], message.count};
    while (lane.at < sizeof(Head) + message.count) {
      const auto [from, bytes] = rest(lane, message);
      const ssize_t sent = ::send(c_.sockets[static_cast<size_t>(peer)], from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) return peer_is_gone(errno);
      lane.at += static_cast<size_t>(sent);
    }
    next(lane);
  }
  void receive(int peer) {
    Lane& lane = receives_[peer];
    if (lane.messages.empty()) return;
    const Message& message = lane.messages.front();
    while (lane.at < sizeof(Head) + message.count) {
      const auto [into, bytes] = rest(lane, message);
      const ssize_t got = ::recv(c_.sockets[static_cast<size_t>(peer)], into, bytes, MSG_DONTWAIT);
      if (got <= 0) return peer_is_gone(got == 0 ? ECONNRESET : errno);
      lane.at += static_cast<size_t>(got);
      if (lane.at == sizeof(Head)) expect_equal(peer, lane.head.count, message.count);
    }
    if (lane.head.number != ++c_.received[static_cast<size_t>(peer)]) misuse("messages in another order");
    next(lane);
    c_.delay(500);
  }
  // Of the head first, then of the bytes.
  static std::pair<std::byte*, size_t> rest(Lane& lane, const Message& message) {
    if (lane.at < sizeof(Head)) return {reinterpret_cast<std::byte*>(&lane.head) + lane.at, sizeof(Head) - lane.at};
    const size_t at = lane.at - sizeof(Head);
    return {message.bytes + at, message.count - at};
  }
  static void next(Lane& lane) {
    lane.messages.pop_front();
    lane.at = 0;
  }
  // Waits for its end, as a kernel does whose peer is silent.
  void peer_is_gone(int error) {
    if (error == EAGAIN || error == EINTR) return;
    if (told("PLAIN_NCCL_TELLS") == "1") c_.state = Answer::remote_error;
    std::this_thread::sleep_for(Milliseconds(kLooksEveryMs));
  }

  Communicator& c_;
  std::map<int, Lane> sends_, receives_;
};

// On the stream's thread.
void run_group(void* data) {
  const std::unique_ptr<Group> own(static_cast<Group*>(data));
  Communicator& c = *own->of;
  c.delay(2000);
  const bool is_stuck = told("PLAIN_NCCL_STUCK") == std::to_string(c.rank) + ":" + std::to_string(own->number);
  while (is_stuck && !c.aborted) std::this_thread::sleep_for(Milliseconds(kLooksEveryMs));
  if (!c.aborted) Running(*own).run();
  std::lock_guard lock(c.mutex);
  --c.under_way;
  c.changed.notify_all();
}

// Of the CUDA runtime that the program has. Looked for when they are called, so that any program can load this.
template <typename Function>
Function* of_runtime(const char* name) {
  void* const found = ::dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) misuse(std::string("a program without ") + name);
  return reinterpret_cast<Function*>(found);
}

void issue(Group* of) {
  static auto* const launch = of_runtime<decltype(cudaLaunchHostFunc)>("cudaLaunchHostFunc");
  if (launch(of->stream, run_group, of) != cudaSuccess) misuse("a stream that takes no group");
}

void expect_on_device(const Message& message) {
  static auto* const get_attributes =
      of_runtime<cudaError_t(cudaPointerAttributes*, const void*)>("cudaPointerGetAttributes");
  for (const std::byte* place : {message.bytes, message.bytes + message.count - 1}) {
    cudaPointerAttributes attributes{};
    if (get_attributes(&attributes, place) != cudaSuccess || attributes.type != cudaMemoryTypeDevice) {
      misuse(std::string(message.sends ? "sends from" : "receives into") + " memory that is not the device's");
    }
  }
}

Answer add(bool sends, const void* bytes, size_t count, DataType type, int peer, Communicator* by, void* stream) {
  const char* const call = sends ? "ncclSend" : "ncclRecv";
  expect_known(by, call);
  if (group_depth == 0) misuse(std::string(call) + " outside a group");
  if (by->state == Answer::in_progress) misuse(std::string(call) + " while the communicator is not ready");
  if (by->state != Answer::success) return by->state;
  if (type != DataType::uint8) misuse(std::string(call) + " of another type than bytes");
  if (peer < 0 || peer >= by->ranks || count == 0) misuse(std::string(call) + " to nobody, or of nothing");
  if (refused(call, by->rank)) return Answer::invalid_argument;
  if (open_group == nullptr) {
    open_group = std::make_unique<Group>();
    open_group->of = by;
    open_group->stream = static_cast<cudaStream_t>(stream);
  }
  if (open_group->of != by || open_group->stream != stream) misuse("a group of two communicators or streams");
  auto* const begin = const_cast<std::byte*>(static_cast<const std::byte*>(bytes));
  open_group->messages.push_back({sends, peer, begin, count});
  expect_on_device(open_group->messages.back());
  return Answer::success;
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED Answer ncclGetVersion(int* version) {
  const std::string say = told("PLAIN_NCCL_VERSION");
  *version = say.empty() ? 22907 : std::atoi(say.c_str());
  return Answer::success;
}
EXPORTED Answer ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> made = 0;
  std::snprintf(id->bytes.data(), id->bytes.size(), "plain-nccl.%d.%d", ::getpid(), ++made);
  return Answer::success;
}
EXPORTED Answer ncclCommInitRankConfig(Communicator** made, int ranks, UniqueId id, int rank, Config* config) {
  const Config expected;
  if (config->size != expected.size || config->magic != expected.magic || config->version != expected.version) {
    misuse("a config that is none");
  }
  if (config->blocking != 0) misuse("a communicator whose calls block");
  if (refused("ncclCommInitRankConfig", rank)) return Answer::unhandled_cuda_error;
  auto* const c = new Communicator();
  c->rank = rank;
  c->ranks = ranks;
  c->name = id.bytes.data();
  c->sockets.assign(static_cast<size_t>(ranks), -1);
  c->sent.assign(static_cast<size_t>(ranks), 0);
  c->received.assign(static_cast<size_t>(ranks), 0);
  const uint64_t seed = std::strtoull(told("PLAIN_NCCL_SEED").c_str(), nullptr, 10);
  c->draws.seed(seed * 1009 + static_cast<uint64_t>(rank));
  c->delays = seed != 0;
  {
    std::lock_guard lock(communicators_mutex);
    communicators.insert(c);
  }
  *made = c;
  c->meeting = std::thread([c] { meet(*c); });
  return Answer::in_progress;
}
EXPORTED Answer ncclCommGetAsyncError(Communicator* of, Answer* error) {
  expect_known(of, "ncclCommGetAsyncError");
  *error = of->state;
  return Answer::success;
}
EXPORTED Answer ncclCommAbort(Communicator* which) {
  expect_known(which, "ncclCommAbort");
  which->aborted = true;
  which->meeting.join();
  if (which->issuing.joinable()) which->issuing.join();
  {
    std::unique_lock lock(which->mutex);
    which->changed.wait(lock, [&] { return which->under_way == 0; });
  }
  for (int socket : which->sockets) {
    if (socket >= 0) ::close(socket);
  }
  std::lock_guard lock(communicators_mutex);
  communicators.erase(which);
  delete which;
  return Answer::success;
}
EXPORTED Answer ncclGroupStart() {
  ++group_depth;
  return Answer::success;
}
EXPORTED Answer ncclGroupEnd() {
  if (group_depth-- == 0) misuse("the end of a group that was not begun");
  if (group_depth > 0 || open_group == nullptr) return Answer::success;
  Group* const all = open_group.release();
  Communicator* const c = all->of;
  all->number = ++c->groups;
  if (refused("ncclGroupEnd", c->rank)) {
    delete all;
    return Answer::internal_error;
  }
  {
    std::lock_guard lock(c->mutex);
    ++c->under_way;
  }
  if (!c->draws_a_later_end()) {
    issue(all);
    return Answer::success;
  }
  c->state = Answer::in_progress;
  if (c->issuing.joinable()) c->issuing.join();
  c->issuing = std::thread([c, all] {
    c->delay(3000);
    issue(all);
    Answer under_way = Answer::in_progress;  // and no error meanwhile
    c->state.compare_exchange_strong(under_way, Answer::success);
  });
  return Answer::in_progress;
}
EXPORTED Answer ncclSend(const void* from, size_t count, DataType type, int peer, Communicator* by, void* stream) {
  return add(true, from, count, type, peer, by, stream);
}
EXPORTED Answer ncclRecv(void* into, size_t count, DataType type, int peer, Communicator* by, void* stream) {
  return add(false, into, count, type, peer, by, stream);
}
EXPORTED const char* ncclGetErrorString(Answer answer) {
  return answer == Answer::remote_error ? "remote process exited or there was a network error" : "as the test asked";
}
EXPORTED const char* ncclGetLastError(Communicator*) { return ""; }

}  // extern "C"
