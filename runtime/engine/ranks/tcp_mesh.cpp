#include "runtime/engine/ranks/tcp_mesh.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/ranks/tcp_messages.h"
#include "runtime/engine/ranks/tcp_sockets.h"

namespace penstock::engine {
namespace {

constexpr std::chrono::milliseconds kTriesAgainAfter{20};
// Who connects says at once who it is, or is no rank.
constexpr std::chrono::seconds kSaysWithin{5};
constexpr size_t kNewcomersMost = 2 * kRanksMax * TcpMesh::kPurposes;
constexpr int kLooksEveryMs = 100;

// One rank's part in the meeting.
class TcpMeeting {
 public:
  TcpMeeting(const RanksOptions& options, const Deadline& deadline) : place_(options.place), deadline_(deadline) {
    for (std::vector<Connection>& connections : mesh_.connections) connections.resize(place_.ranks);
  }

  Result<TcpMesh> run() {
    PENSTOCK_TRY_ASSIGN(addresses, tcp::resolve(place_.address, place_.port));
    PENSTOCK_TRY_ASSIGN(listening, tcp::listen_at(addresses->ai_family, place_.rank == 0 ? place_.port : 0));
    listening_ = std::move(listening);
    tcp::Roster roster;
    if (place_.rank == 0) {
      roster.hosts[0] = tcp::host_name();
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
  tcp::Hello hello(uint32_t purpose) const {
    return {.meeting = std::hash<std::string>()(place_.meeting),
            .rank = place_.rank,
            .ranks = place_.ranks,
            .purpose = purpose};
  }

  // One who has connected, and has not said yet who it is. Strangers may say nothing, and keep no rank waiting.
  struct Newcomer {
    Connection connection;
    sockaddr_storage from{};
    tcp::Nonce nonce{};
    Deadline deadline{kSaysWithin};
    tcp::Hello said{};
    size_t received = 0;
  };

  // `roster`: to enter who comes into.
  Status accept_until(const std::function<bool()>& enough, tcp::Roster* roster) {
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
                  text("look at what those ranks have printed, and give all of them the same ", tcp::kSecret));
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
    tcp::send_at_once(one.connection);
    PENSTOCK_TRY_ASSIGN(nonce, tcp::draw_nonce());
    one.nonce = nonce;
    if (!tcp::send_message(one.connection, tcp::Challenge{.nonce = nonce})) return Status();
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
  Status take_in(Newcomer& one, tcp::Roster* roster) {
    tcp::Hello& said = one.said;
    const bool knows = said.magic == tcp::kMagic &&
                       is_same(said.proof, tcp::proof_of(tcp::Side::connects, place_.rank, one.nonce, said));
    if (!knows || said.meeting != hello(0).meeting || said.purpose >= TcpMesh::kPurposes) return Status();
    const bool fits = said.ranks == place_.ranks && said.rank > 0 && said.rank < place_.ranks;
    if (!fits || has(said.purpose, said.rank)) {
      return Status(Code::kUsage,
                    fits ? text("ranks: two processes claim rank ", said.rank, " of ", said.ranks)
                         : text("ranks: a process claims rank ", said.rank, " of ", said.ranks, ", where there are ",
                                place_.ranks),
                    "give every process its own RANK, and all the same WORLD_SIZE");
    }
    const tcp::Welcome welcome{.proof = tcp::proof_of(tcp::Side::listens, place_.rank, one.nonce, said)};
    if (!tcp::send_message(one.connection, welcome)) return Status();
    mesh_.connections[said.purpose][said.rank] = std::move(one.connection);
    if (roster == nullptr) return Status();
    tcp::set_port(one.from, said.port);
    roster->addresses[said.rank] = one.from;
    said.host.back() = 0;
    roster->hosts[said.rank] = said.host;
    ++come_;
    return Status();
  }

  // Rank 0.
  Status receive_all(tcp::Roster& roster) {
    PENSTOCK_TRY(accept_until([this] { return come_ == place_.ranks; }, &roster));
    for (uint32_t other = 1; other < place_.ranks; ++other) {
      if (tcp::send_message(mesh_.connections[TcpMesh::kPassesControl][other], roster)) continue;
      return Status(Code::kEnvironment, text("rank ", other, " died before all ranks had come"));
    }
    return Status();
  }

  // The others.
  Status come(const addrinfo& addresses, tcp::Roster& roster) {
    Connection connection;
    while (connection.descriptor() < 0) {
      for (const addrinfo* each = &addresses; each != nullptr && connection.descriptor() < 0; each = each->ai_next) {
        Result<Connection> made = tcp::make_socket(each->ai_family);
        if (made.ok() && tcp::connect_within(*made, each->ai_addr, each->ai_addrlen, deadline_)) {
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
    tcp::send_at_once(connection);
    PENSTOCK_TRY_ASSIGN(port, tcp::port_of(listening_));
    tcp::Hello mine = hello(TcpMesh::kPassesControl);
    mine.port = port;
    mine.host = tcp::host_name();
    PENSTOCK_TRY(introduce(connection, mine, 0));
    if (!tcp::receive_message(connection, roster, deadline_)) {
      return Status(Code::kEnvironment,
                    deadline_.is_over() ? text("ranks: not all came within ", deadline_.words())
                                        : std::string("ranks: rank 0 ended before all had come"),
                    "look at what rank 0 has printed");
    }
    mesh_.connections[TcpMesh::kPassesControl][0] = std::move(connection);
    return Status();
  }

  // Both sides prove that they know the secret, over numbers that they have drawn for one another.
  Status introduce(const Connection& connection, tcp::Hello mine, uint32_t other) const {
    tcp::Challenge challenge;
    PENSTOCK_TRY_ASSIGN(nonce, tcp::draw_nonce());
    mine.nonce = nonce;
    tcp::Welcome welcome;
    bool is_heard = tcp::receive_message(connection, challenge, deadline_);
    mine.proof = tcp::proof_of(tcp::Side::connects, other, challenge.nonce, mine);
    is_heard = is_heard && tcp::send_message(connection, mine) && tcp::receive_message(connection, welcome, deadline_);
    if (!is_heard) {
      return Status(Code::kEnvironment,
                    deadline_.is_over()
                        ? text("ranks: not all came within ", deadline_.words())
                        : text("ranks: rank ", other, " ended, or did not take rank ", place_.rank, " in"),
                    text("look at what rank ", other, " has printed, and give all ranks the same ", tcp::kSecret));
    }
    if (is_same(welcome.proof, tcp::proof_of(tcp::Side::listens, other, challenge.nonce, mine))) return Status();
    return Status(Code::kEnvironment,
                  text("ranks: who listens as rank ", other, " does not know this run's ", tcp::kSecret),
                  text("give all ranks the same ", tcp::kSecret, ", and the address of rank 0's host"));
  }

  // Who came to rank 0 by its host's own address is on that host, which has another one for the rest.
  sockaddr_storage address_of(uint32_t other, const tcp::Roster& roster) const {
    const sockaddr_storage& seen = roster.addresses[other];
    if (!tcp::is_loopback(seen) || seen.ss_family != first_.ss_family) return seen;
    sockaddr_storage there = first_;
    tcp::set_port(there, tcp::port_of(seen));
    return there;
  }

  Status connect_with(uint32_t other, const tcp::Roster& roster) {
    for (uint32_t purpose = 0; purpose < TcpMesh::kPurposes; ++purpose) {
      if (has(purpose, other)) continue;
      const sockaddr_storage address = other == 0 ? first_ : address_of(other, roster);
      PENSTOCK_TRY_ASSIGN(made, tcp::make_socket(address.ss_family));
      if (!tcp::connect_within(made, reinterpret_cast<const sockaddr*>(&address), tcp::length_of(address), deadline_)) {
        return errno_status(text("ranks: rank ", place_.rank, " connects with rank ", other), errno,
                            "let the ranks' hosts reach one another at any port");
      }
      tcp::send_at_once(made);
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
  return TcpMeeting(options, Deadline(options.meets_within, options.gives_up)).run();
}

}  // namespace penstock::engine
