#include "runtime/engine/ranks/tcp_sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/time.h>

#include <algorithm>

#include "runtime/engine/ranks/tcp_mesh.h"

namespace penstock::engine::tcp {
namespace {

// Connections that the kernel holds until they are taken in.
constexpr int kWaitingMost = static_cast<int>(kRanksMax * TcpMesh::kPurposes);

}  // namespace

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

Result<Connection> listen_at(int family, uint32_t port) {
  PENSTOCK_TRY_ASSIGN(listening, make_socket(family));
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  set_port(any, port);
  // What an earlier run has left in the kernel's care is no reason to wait.
  const int yes = 1;
  (void)::setsockopt(listening.descriptor(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(listening.descriptor(), reinterpret_cast<const sockaddr*>(&any), length_of(any)) != 0 ||
      ::listen(listening.descriptor(), kWaitingMost) != 0) {
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

void send_at_once(const Connection& connection) {
  const int yes = 1, idle_s = 30;
  (void)::setsockopt(connection.descriptor(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  (void)::setsockopt(connection.descriptor(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  (void)::setsockopt(connection.descriptor(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
}

bool connect_within(const Connection& connection, const sockaddr* address, socklen_t length, const Deadline& deadline) {
  const int ms = std::max(1, deadline.left_ms());
  const timeval within{ms / 1000, ms % 1000 * 1000};
  (void)::setsockopt(connection.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &within, sizeof within);
  if (::connect(connection.descriptor(), address, length) != 0) return false;
  const timeval no_limit{};
  (void)::setsockopt(connection.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &no_limit, sizeof no_limit);
  return true;
}

bool send_bytes(const Connection& to, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t now = ::send(to.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(now));
  }
  return true;
}

bool receive_bytes(const Connection& from, std::span<std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    if (!readable_within(from.descriptor(), deadline)) return false;
    const ssize_t now = ::recv(from.descriptor(), bytes.data(), bytes.size(), 0);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(now));
  }
  return true;
}

}  // namespace penstock::engine::tcp
