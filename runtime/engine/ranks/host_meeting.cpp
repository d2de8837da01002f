// How the ranks of one host find one another.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "runtime/engine/ranks/host_ranks.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kMagic = 0x314b'4e41'5253'4e50;  // PNSRANK1
constexpr std::chrono::milliseconds kTriesAgainAfter{20};

// What a rank says when it comes.
struct Hello {
  uint64_t magic = kMagic;
  uint32_t rank = 0;
  uint32_t ranks = 0;
  uint64_t shared_bytes = 0;
  uint64_t has_device = 0;
};
// What rank 0 answers with the shared memory, when all have come.
struct Welcome {
  uint64_t magic = kMagic;
  std::array<uint64_t, kRanksMax> memory_bytes{};
};

// Of the kernel's own name space, so that nothing is left behind: sun_path begins with a zero. Users have names apart.
struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;

  explicit Address(const std::string& meeting) {
    // A name of any length, in the 107 B that there are.
    const std::string name = text("penstock.", ::getuid(), ".", std::hash<std::string>()(meeting), ".", meeting);
    const size_t bytes = std::min(name.size(), sizeof socket.sun_path - 1);
    socket.sun_family = AF_UNIX;
    std::memcpy(socket.sun_path + 1, name.data(), bytes);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket); }
};

// Another user may have taken the name.
bool is_ours(int descriptor) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::getuid();
}

template <typename Message>
bool send_message(int to, const Message& message, int descriptor = -1) {
  iovec part{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(to, &header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof message);
}

// A message of SOCK_SEQPACKET comes whole or not at all.
template <typename Message>
bool receive_message(int from, Message& message, int* descriptor = nullptr) {
  iovec part{&message, sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t received;
  do {
    received = ::recvmsg(from, &header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  int got = -1;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&header); rights != nullptr; rights = CMSG_NXTHDR(&header, rights)) {
    if (rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&got, CMSG_DATA(rights), sizeof(int));
    }
  }
  const bool is_whole = received == static_cast<ssize_t>(sizeof message) && message.magic == kMagic;
  if (descriptor != nullptr && is_whole && got >= 0) {
    *descriptor = got;
    return true;
  }
  if (got >= 0) ::close(got);
  return is_whole && descriptor == nullptr;
}

Result<Connection> make_socket() {
  const int made = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (made < 0) return errno_status("ranks: a socket to meet at", errno);
  return Connection(made);
}

std::string missing(const std::vector<Connection>& connections) {
  std::string numbers;
  for (uint32_t other = 1; other < connections.size(); ++other) {
    if (connections[other].descriptor() < 0) numbers += text(numbers.empty() ? "" : ", ", other);
  }
  return numbers;
}

// Rank 0.
Result<Meeting> receive_all(const RanksOptions& options, const Address& address, const Deadline& deadline) {
  const RankPlace& place = options.place;
  Meeting meeting;
  meeting.connections.resize(place.ranks);
  std::vector<uint64_t> bytes(place.ranks);
  bytes[0] = options.memory_bytes;
  PENSTOCK_TRY_ASSIGN(listening, make_socket());
  // Alone it has no name to meet at.
  if (place.ranks > 1 && ::bind(listening.descriptor(), address.get(), address.length) != 0) {
    return errno_status(text("ranks: meet at ", place.meeting), errno,
                        "another process of this user is rank 0 there: give every process its own RANK, or this run "
                        "another MASTER_PORT");
  }
  if (place.ranks > 1 && ::listen(listening.descriptor(), static_cast<int>(place.ranks)) != 0) {
    return errno_status(text("ranks: meet at ", place.meeting), errno);
  }
  Status equal;  // refused when all have come: who comes later would wait for a rank 0 that has gone
  for (uint32_t come = 1; come < place.ranks;) {
    if (deadline.is_over() || !readable_within(listening.descriptor(), deadline)) {
      return Status(Code::kEnvironment,
                    text("ranks: ", come, " of ", place.ranks, " came within ", deadline.words(), "; missing: rank ",
                         missing(meeting.connections)),
                    "look at what those ranks have printed");
    }
    Connection connection(::accept4(listening.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.descriptor() < 0) {
      if (errno == EINTR || errno == ECONNABORTED || errno == EAGAIN) continue;
      return errno_status("ranks: take in who connects", errno);
    }
    if (!is_ours(connection.descriptor())) continue;
    Hello hello;
    if (!readable_within(connection.descriptor(), deadline) || !receive_message(connection.descriptor(), hello))
      continue;
    const bool fits = hello.ranks == place.ranks && hello.rank > 0 && hello.rank < place.ranks;
    if (!fits || meeting.connections[hello.rank].descriptor() >= 0) {
      return Status(Code::kUsage,
                    fits ? text("ranks: two processes claim rank ", hello.rank, " of ", hello.ranks)
                         : text("ranks: a process claims rank ", hello.rank, " of ", hello.ranks, ", where there are ",
                                place.ranks),
                    "give every process its own RANK, and all the same WORLD_SIZE");
    }
    if ((hello.has_device != 0) != options.device.has_value() && equal.ok()) {
      equal = Status(Code::kUsage,
                     text("ranks: rank ", options.device ? 0 : hello.rank, " computes on a device, and rank ",
                          options.device ? hello.rank : 0, " on none"),
                     "give every rank a device of its own, or none");
    }
    bytes[hello.rank] = hello.shared_bytes;
    meeting.connections[hello.rank] = std::move(connection);
    ++come;
  }
  PENSTOCK_TRY(equal);
  PENSTOCK_TRY_ASSIGN(memory, SharedMemory::make(bytes));
  meeting.memory = std::move(memory);
  Welcome welcome;
  std::copy(bytes.begin(), bytes.end(), welcome.memory_bytes.begin());
  for (uint32_t other = 1; other < place.ranks; ++other) {
    if (send_message(meeting.connections[other].descriptor(), welcome, meeting.memory->descriptor())) continue;
    return Status(Code::kEnvironment, text("rank ", other, " died before all ranks had come"));
  }
  return meeting;
}

// The others.
Result<Meeting> come(const RanksOptions& options, const Address& address, const Deadline& deadline) {
  const RankPlace& place = options.place;
  Connection connection;
  while (true) {
    PENSTOCK_TRY_ASSIGN(made, make_socket());
    if (::connect(made.descriptor(), address.get(), address.length) == 0) {
      connection = std::move(made);
      break;
    }
    const int error = errno;
    const bool is_early = error == ECONNREFUSED || error == EAGAIN || error == EINTR;
    if (!is_early) return errno_status(text("ranks: meet rank 0 at ", place.meeting), error);
    if (deadline.is_over()) {
      return Status(Code::kEnvironment,
                    text("ranks: rank 0 did not come to ", place.meeting, " within ", deadline.words()),
                    "look at what rank 0 has printed");
    }
    std::this_thread::sleep_for(kTriesAgainAfter);
  }
  if (!is_ours(connection.descriptor())) {
    return Status(Code::kEnvironment, text("ranks: another user's process waits at ", place.meeting),
                  "give this run another MASTER_PORT");
  }
  const Hello hello{.rank = place.rank,
                    .ranks = place.ranks,
                    .shared_bytes = options.memory_bytes,
                    .has_device = options.device ? 1u : 0u};
  Welcome welcome;
  int descriptor = -1;
  if (!send_message(connection.descriptor(), hello) || !readable_within(connection.descriptor(), deadline) ||
      !receive_message(connection.descriptor(), welcome, &descriptor)) {
    return Status(Code::kEnvironment,
                  deadline.is_over() ? text("ranks: not all came within ", deadline.words())
                                     : std::string("ranks: rank 0 ended before all had come"),
                  "look at what rank 0 has printed");
  }
  Meeting meeting;
  const std::vector<uint64_t> bytes(welcome.memory_bytes.begin(), welcome.memory_bytes.begin() + place.ranks);
  PENSTOCK_TRY_ASSIGN(memory, SharedMemory::attach(descriptor, bytes));
  meeting.memory = std::move(memory);
  meeting.connections.resize(place.ranks);
  meeting.connections[0] = std::move(connection);
  return meeting;
}

}  // namespace

Result<Meeting> meet_on_host(const RanksOptions& options) {
  const Address address(options.place.meeting);
  const Deadline deadline(options.meets_within, options.gives_up);
  return options.place.rank == 0 ? receive_all(options, address, deadline) : come(options, address, deadline);
}

}  // namespace penstock::engine
