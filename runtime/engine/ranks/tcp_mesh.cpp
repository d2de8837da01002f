#include "runtime/engine/ranks/tcp_mesh.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/ranks/hmac_sha256.h"

namespace penstock::engine {
namespace {

constexpr uint64_t kMagic = 0x3250'4354'4b53'4e50;  // PNSKTCP2
constexpr std::chrono::milliseconds kTriesAgainAfter{20};
// Who connects says at once who it is, or is no rank.
constexpr std::chrono::seconds kSaysWithin{5};
constexpr size_t kNewcomersMost = 2 * kRanksMax * TcpMesh::kPurposes;
constexpr int kLooksEveryMs = 100;

using Nonce = std::array<std::byte, 32>;
using HostName = std::array<char, 64>;  // ends with a zero

HostName host_name() {
  HostName name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return name;
}

struct TcpHello {
  uint64_t magic = kMagic;
  uint64_t meeting = 0;  // of its name
  uint32_t rank = 0, ranks = 0;
  uint32_t purpose = 0;
  uint32_t port = 0;  // at which it listens itself
  HostName host{};
  Nonce nonce{};   // drawn by who connects
  Digest proof{};  // that it knows the secret
};
static_assert(sizeof(TcpHello) == 160, "all of it is proven, and nothing lies between");

// Who is connected with says these two: before the hello, and after it.
struct Challenge {
  uint64_t magic = kMagic;
  Nonce nonce{};
};
struct Welcome {
  uint64_t magic = kMagic;
  Digest proof{};
};

// Where each rank listens, as rank 0 sees it.
struct Roster {
  uint64_t magic = kMagic;
  std::array<sockaddr_storage, kRanksMax> addresses{};
  std::array<HostName, kRanksMax> hosts{};
};

constexpr const char* kSecret = "PENSTOCK_SECRET";

Result<Nonce> draw_nonce() {
  Nonce nonce{};
  const ssize_t drawn = ::getrandom(nonce.data(), nonce.size(), 0);
  if (drawn == static_cast<ssize_t>(nonce.size())) return nonce;
  return errno_status("ranks: random bytes to meet with", errno);
}

// Of both nonces and of who is whom. The two sides' differ, so that neither can send the other's back.
enum class Side : uint8_t { connects, listens };
Digest proof_of(Side side, uint32_t listener, const Nonce& challenge, TcpHello hello) {
  const std::string secret = environment_variable(kSecret).value_or("");
  hello.proof = {};
  static_assert(kRanksMax <= 256, "a byte names the rank that listens");
  std::vector<std::byte> message = {static_cast<std::byte>(side), static_cast<std::byte>(listener)};
  message.insert(message.end(), challenge.begin(), challenge.end());
  const auto said = std::as_bytes(std::span(&hello, 1));
  message.insert(message.end(), said.begin(), said.end());
  return hmac_sha256(std::as_bytes(std::span(secret)), message);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<Addresses> resolve(const std::string& host, uint32_t port) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), text(port).c_str(), &wanted, &found);
  if (error == 0) return Addresses(found, &::freeaddrinfo);
  return Status(Code::kEnvironment, text("ranks: MASTER_ADDR ", host, ": ", ::gai_strerror(error)),
                "give the address of rank 0's host in MASTER_ADDR");
}

Result<Connection> make_socket(int family) {
  const int made = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) return errno_status("ranks: a socket to meet at", errno);
  return Connection(made);
}

void set_port(sockaddr_storage& address, uint32_t port) {
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(static_cast<uint16_t>(port));
  }
}

uint32_t port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

socklen_t length_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

// On every address of this host; port 0: any.
Result<Connection> listen_at(int family, uint32_t port) {
  PENSTOCK_TRY_ASSIGN(listening, make_socket(family));
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  set_port(any, port);
  // What an earlier run has left in the kernel's care is no reason to wait.
  const int yes = 1;
  (void)::setsockopt(listening.descriptor(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(listening.descriptor(), reinterpret_cast<const sockaddr*>(&any), length_of(any)) != 0 ||
      ::listen(listening.descriptor(), static_cast<int>(kRanksMax * TcpMesh::kPurposes)) != 0) {
    return errno_status(text("ranks: listen at port ", port), errno, "give this run another MASTER_PORT");
  }
  return Result<Connection>(std::move(listening));
}

Result<uint32_t> port_of(const Connection& listening) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(listening.descriptor(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return errno_status("ranks: a socket to meet at", errno);
  }
  return port_of(address);
}

// Nor is it forgotten by what stands between, where long passes leave it idle.
void send_at_once(const Connection& connection) {
  const int yes = 1, idle_s = 30;
  (void)::setsockopt(connection.descriptor(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  (void)::setsockopt(connection.descriptor(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  (void)::setsockopt(connection.descriptor(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
}

// False with errno. The kernel would try for minutes.
bool connect_within(const Connection& connection, const sockaddr* address, socklen_t length, const Deadline& deadline) {
  const int ms = std::max(1, deadline.left_ms());
  const timeval within{ms / 1000, ms % 1000 * 1000};
  (void)::setsockopt(connection.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &within, sizeof within);
  if (::connect(connection.descriptor(), address, length) != 0) return false;
  const timeval no_limit{};
  (void)::setsockopt(connection.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &no_limit, sizeof no_limit);
  return true;
}

template <typename Message>
bool send_message(const Connection& to, const Message& message) {
  const auto* bytes = reinterpret_cast<const char*>(&message);
  for (size_t sent = 0; sent < sizeof message;) {
    const ssize_t now = ::send(to.descriptor(), bytes + sent, sizeof message - sent, MSG_NOSIGNAL);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return false;
    sent += static_cast<size_t>(now);
  }
  return true;
}

template <typename Message>
bool receive_message(const Connection& from, Message& message, const Deadline& deadline) {
  auto* bytes = reinterpret_cast<char*>(&message);
  for (size_t received = 0; received < sizeof message;) {
    if (!readable_within(from.descriptor(), deadline)) return false;
    const ssize_t now = ::recv(from.descriptor(), bytes + received, sizeof message - received, 0);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return false;
    received += static_cast<size_t>(now);
  }
  return message.magic == kMagic;
}

// One rank's part in the meeting.
class TcpMeeting {
 public:
  TcpMeeting(const RanksOptions& options, const Deadline& deadline) : place_(options.place), deadline_(deadline) {
    for (std::vector<Connection>& connections : mesh_.connections) connections.resize(place_.ranks);
  }

  Result<TcpMesh> run() {
    PENSTOCK_TRY_ASSIGN(addresses, resolve(place_.address, place_.port));
    PENSTOCK_TRY_ASSIGN(listening, listen_at(addresses->ai_family, place_.rank == 0 ? place_.port : 0));
    listening_ = std::move(listening);
    Roster roster;
    if (place_.rank == 0) {
      roster.hosts[0] = host_name();
      PENSTOCK_TRY(receive_all(roster));
    } else {
      PENSTOCK_TRY(come(*addresses, roster));
    }
    for (uint32_t other = 0; other < place_.rank; ++other) PENSTOCK_TRY(connect_with(other, roster));
    PENSTOCK_TRY(accept_until([this] { return missing().empty(); }, nullptr));
    for (uint32_t rank = 0; rank < place_.ranks; ++rank) {
      roster.hosts[rank].back() = 0;
      mesh_.hosts.emplace_back(roster.hosts[rank].data());
    }
    return Result<TcpMesh>(std::move(mesh_));
  }

 private:
  bool has(uint32_t purpose, uint32_t other) const { return mesh_.connections[purpose][other].descriptor() >= 0; }
  // Of ranks that come to this one; at first, to rank 0, by one connection each.
  std::string missing() const {
    const bool is_first = place_.rank == 0 && come_ < place_.ranks;
    std::string numbers;
    for (uint32_t other = place_.rank + 1; other < place_.ranks; ++other) {
      bool is_missing = false;
      for (uint32_t purpose = 0; purpose < (is_first ? 1 : TcpMesh::kPurposes); ++purpose) {
        is_missing = is_missing || !has(purpose, other);
      }
      if (is_missing) numbers += text(numbers.empty() ? "" : ", ", other);
    }
    return numbers;
  }
  TcpHello hello(uint32_t purpose) const {
    return {.meeting = std::hash<std::string>()(place_.meeting),
            .rank = place_.rank,
            .ranks = place_.ranks,
            .purpose = purpose};
  }

  // One who has connected, and has not said yet who it is. Strangers may say nothing, and keep no rank waiting.
  struct Newcomer {
    Connection connection;
    sockaddr_storage from{};
    Nonce nonce{};
    Deadline deadline{kSaysWithin};
    TcpHello said{};
    size_t received = 0;
  };

  // `roster`: to enter who comes into.
  Status accept_until(const std::function<bool()>& enough, Roster* roster) {
    while (!enough()) {
      if (deadline_.is_over()) return refuse_late(roster != nullptr);
      std::vector<pollfd> sources = {{listening_.descriptor(), POLLIN, 0}};
      for (const Newcomer& one : newcomers_) sources.push_back({one.connection.descriptor(), POLLIN, 0});
      if (::poll(sources.data(), sources.size(), std::min(kLooksEveryMs, deadline_.left_ms())) < 0) continue;
      for (size_t i = newcomers_.size(); i-- > 0;) {
        Newcomer& one = newcomers_[i];
        const bool goes_on = sources[i + 1].revents == 0 || hear(one);
        if (one.received == sizeof one.said) PENSTOCK_TRY(take_in(one, roster));
        const bool has_ended = !goes_on || one.received == sizeof one.said || one.deadline.is_over();
        if (has_ended) newcomers_.erase(newcomers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (sources.front().revents != 0) PENSTOCK_TRY(accept_one());
    }
    return Status();
  }

  Status refuse_late(bool is_first) const {
    return Status(Code::kEnvironment,
                  is_first && place_.rank == 0 ? text("ranks: ", come_, " of ", place_.ranks, " came within ",
                                                      deadline_.words(), "; missing: rank ", missing())
                                               : text("ranks: not all came within ", deadline_.words(), ": rank ",
                                                      missing(), " did not connect with rank ", place_.rank),
                  text("look at what those ranks have printed, and give all of them the same ", kSecret));
  }

  Status accept_one() {
    Newcomer one;
    socklen_t length = sizeof one.from;
    one.connection =
        Connection(::accept4(listening_.descriptor(), reinterpret_cast<sockaddr*>(&one.from), &length, SOCK_CLOEXEC));
    if (one.connection.descriptor() < 0) {
      const bool has_gone = errno == EINTR || errno == ECONNABORTED || errno == EAGAIN;
      return has_gone ? Status() : errno_status("ranks: take in who connects", errno);
    }
    send_at_once(one.connection);
    PENSTOCK_TRY_ASSIGN(nonce, draw_nonce());
    one.nonce = nonce;
    if (!send_message(one.connection, Challenge{.nonce = nonce})) return Status();
    if (newcomers_.size() == kNewcomersMost) newcomers_.erase(newcomers_.begin());
    newcomers_.push_back(std::move(one));
    return Status();
  }

  // What has come of its hello. False: it has gone.
  static bool hear(Newcomer& one) {
    auto* bytes = reinterpret_cast<char*>(&one.said);
    const ssize_t now =
        ::recv(one.connection.descriptor(), bytes + one.received, sizeof one.said - one.received, MSG_DONTWAIT);
    if (now < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (now <= 0) return false;
    one.received += static_cast<size_t>(now);
    return true;
  }

  // A stranger is not.
  Status take_in(Newcomer& one, Roster* roster) {
    TcpHello& said = one.said;
    const bool knows =
        said.magic == kMagic && is_same(said.proof, proof_of(Side::connects, place_.rank, one.nonce, said));
    if (!knows || said.meeting != hello(0).meeting || said.purpose >= TcpMesh::kPurposes) return Status();
    const bool fits = said.ranks == place_.ranks && said.rank > 0 && said.rank < place_.ranks;
    if (!fits || has(said.purpose, said.rank)) {
      return Status(Code::kUsage,
                    fits ? text("ranks: two processes claim rank ", said.rank, " of ", said.ranks)
                         : text("ranks: a process claims rank ", said.rank, " of ", said.ranks, ", where there are ",
                                place_.ranks),
                    "give every process its own RANK, and all the same WORLD_SIZE");
    }
    const Welcome welcome{.proof = proof_of(Side::listens, place_.rank, one.nonce, said)};
    if (!send_message(one.connection, welcome)) return Status();
    mesh_.connections[said.purpose][said.rank] = std::move(one.connection);
    if (roster == nullptr) return Status();
    set_port(one.from, said.port);
    roster->addresses[said.rank] = one.from;
    said.host.back() = 0;
    roster->hosts[said.rank] = said.host;
    ++come_;
    return Status();
  }

  // Rank 0.
  Status receive_all(Roster& roster) {
    PENSTOCK_TRY(accept_until([this] { return come_ == place_.ranks; }, &roster));
    for (uint32_t other = 1; other < place_.ranks; ++other) {
      if (send_message(mesh_.connections[TcpMesh::kPassesControl][other], roster)) continue;
      return Status(Code::kEnvironment, text("rank ", other, " died before all ranks had come"));
    }
    return Status();
  }

  // The others.
  Status come(const addrinfo& addresses, Roster& roster) {
    Connection connection;
    while (connection.descriptor() < 0) {
      for (const addrinfo* each = &addresses; each != nullptr && connection.descriptor() < 0; each = each->ai_next) {
        Result<Connection> made = make_socket(each->ai_family);
        if (made.ok() && connect_within(*made, each->ai_addr, each->ai_addrlen, deadline_)) {
          std::memcpy(&first_, each->ai_addr, each->ai_addrlen);
          connection = *std::move(made);
        }
      }
      if (connection.descriptor() >= 0) break;
      const int error = errno;  // of the last
      if (deadline_.is_over()) {
        return errno_status(
            text("ranks: rank 0 did not come to ", place_.address, ":", place_.port, " within ", deadline_.words()),
            error, "look at what rank 0 has printed");
      }
      std::this_thread::sleep_for(kTriesAgainAfter);
    }
    send_at_once(connection);
    PENSTOCK_TRY_ASSIGN(port, port_of(listening_));
    TcpHello mine = hello(TcpMesh::kPassesControl);
    mine.port = port;
    mine.host = host_name();
    PENSTOCK_TRY(introduce(connection, mine, 0));
    if (!receive_message(connection, roster, deadline_)) {
      return Status(Code::kEnvironment,
                    deadline_.is_over() ? text("ranks: not all came within ", deadline_.words())
                                        : std::string("ranks: rank 0 ended before all had come"),
                    "look at what rank 0 has printed");
    }
    mesh_.connections[TcpMesh::kPassesControl][0] = std::move(connection);
    return Status();
  }

  // Both sides prove that they know the secret, over numbers that they have drawn for one another.
  Status introduce(const Connection& connection, TcpHello mine, uint32_t other) const {
    Challenge challenge;
    PENSTOCK_TRY_ASSIGN(nonce, draw_nonce());
    mine.nonce = nonce;
    Welcome welcome;
    bool is_heard = receive_message(connection, challenge, deadline_);
    mine.proof = proof_of(Side::connects, other, challenge.nonce, mine);
    is_heard = is_heard && send_message(connection, mine) && receive_message(connection, welcome, deadline_);
    if (!is_heard) {
      return Status(Code::kEnvironment,
                    deadline_.is_over()
                        ? text("ranks: not all came within ", deadline_.words())
                        : text("ranks: rank ", other, " ended, or did not take rank ", place_.rank, " in"),
                    text("look at what rank ", other, " has printed, and give all ranks the same ", kSecret));
    }
    if (is_same(welcome.proof, proof_of(Side::listens, other, challenge.nonce, mine))) return Status();
    return Status(Code::kEnvironment, text("ranks: who listens as rank ", other, " does not know this run's ", kSecret),
                  text("give all ranks the same ", kSecret, ", and the address of rank 0's host"));
  }

  // Who came to rank 0 by its host's own address is on that host, which has another one for the rest.
  sockaddr_storage address_of(uint32_t other, const Roster& roster) const {
    const sockaddr_storage& seen = roster.addresses[other];
    if (!is_loopback(seen) || seen.ss_family != first_.ss_family) return seen;
    sockaddr_storage there = first_;
    set_port(there, port_of(seen));
    return there;
  }

  Status connect_with(uint32_t other, const Roster& roster) {
    for (uint32_t purpose = 0; purpose < TcpMesh::kPurposes; ++purpose) {
      if (has(purpose, other)) continue;
      const sockaddr_storage address = other == 0 ? first_ : address_of(other, roster);
      PENSTOCK_TRY_ASSIGN(made, make_socket(address.ss_family));
      if (!connect_within(made, reinterpret_cast<const sockaddr*>(&address), length_of(address), deadline_)) {
        return errno_status(text("ranks: rank ", place_.rank, " connects with rank ", other), errno,
                            "let the ranks' hosts reach one another at any port");
      }
      send_at_once(made);
      PENSTOCK_TRY(introduce(made, hello(purpose), other));
      mesh_.connections[purpose][other] = std::move(made);
    }
    return Status();
  }

  const RankPlace& place_;
  const Deadline deadline_;
  TcpMesh mesh_;
  Connection listening_;
  std::vector<Newcomer> newcomers_;
  uint32_t come_ = 1;
  sockaddr_storage first_{};  // where rank 0 listens
};

}  // namespace

Result<TcpMesh> meet_over_tcp(const RanksOptions& options) {
  return TcpMeeting(options, Deadline(options.meets_within)).run();
}

}  // namespace penstock::engine
