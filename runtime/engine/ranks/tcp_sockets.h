// The sockets that ranks of several hosts meet by: addresses, and connections that are made and read within a deadline.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/engine/ranks/connection.h"

namespace penstock::engine::tcp {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<Addresses> resolve(const std::string& host, uint32_t port);

void set_port(sockaddr_storage& address, uint32_t port);
uint32_t port_of(const sockaddr_storage& address);
bool is_loopback(const sockaddr_storage& address);
socklen_t length_of(const sockaddr_storage& address);

Result<Connection> make_socket(int family);
// On every address of this host; port 0: any.
Result<Connection> listen_at(int family, uint32_t port);
Result<uint32_t> port_of(const Connection& listening);

// False with errno. The kernel would try for minutes.
bool connect_within(const Connection& connection, const sockaddr* address, socklen_t length, const Deadline& deadline);
// Nor is it forgotten by what stands between, where long passes leave it idle.
void send_at_once(const Connection& connection);

// All of the bytes, or false.
bool send_bytes(const Connection& to, std::span<const std::byte> bytes);
bool receive_bytes(const Connection& from, std::span<std::byte> bytes, const Deadline& deadline);

}  // namespace penstock::engine::tcp
