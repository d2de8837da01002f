// What ranks of several hosts say to one another as they meet, and how both ends of a connection prove that they know
// the run's secret.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/engine/ranks/hmac_sha256.h"
#include "runtime/engine/ranks/ranks.h"
#include "runtime/engine/ranks/tcp_sockets.h"

namespace penstock::engine::tcp {

constexpr uint64_t kMagic = 0x3250'4354'4b53'4e50;  // PNSKTCP2
constexpr const char* kSecret = "PENSTOCK_SECRET";

using Nonce = std::array<std::byte, 32>;
using HostName = std::array<char, 64>;  // ends with a zero

HostName host_name();
Result<Nonce> draw_nonce();

struct Hello {
  uint64_t magic = kMagic;
  uint64_t meeting = 0;  // of its name
  uint32_t rank = 0, ranks = 0;
  uint32_t purpose = 0;
  uint32_t port = 0;  // at which it listens itself
  HostName host{};
  Nonce nonce{};   // drawn by who connects
  Digest proof{};  // that it knows the secret
};
static_assert(sizeof(Hello) == 160, "all of it is proven, and nothing lies between");

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

// Of both nonces and of who is whom. The two sides' differ, so that neither can send the other's back.
enum class Side : uint8_t { connects, listens };
Digest proof_of(Side side, uint32_t listener, const Nonce& challenge, Hello hello);

template <typename Message>
bool send_message(const Connection& to, const Message& message) {
  return send_bytes(to, std::as_bytes(std::span(&message, 1)));
}

template <typename Message>
bool receive_message(const Connection& from, Message& message, const Deadline& deadline) {
  return receive_bytes(from, std::as_writable_bytes(std::span(&message, 1)), deadline) && message.magic == kMagic;
}

}  // namespace penstock::engine::tcp
