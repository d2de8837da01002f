#include "runtime/engine/ranks/tcp_messages.h"

#include <sys/random.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "runtime/engine/ranks/rank_place.h"

namespace penstock::engine::tcp {

HostName host_name() {
  HostName name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return name;
}

Result<Nonce> draw_nonce() {
  Nonce nonce{};
  const ssize_t drawn = ::getrandom(nonce.data(), nonce.size(), 0);
  if (drawn == static_cast<ssize_t>(nonce.size())) return nonce;
  return errno_status("ranks: random bytes to meet with", errno);
}

Digest proof_of(Side side, uint32_t listener, const Nonce& challenge, Hello hello) {
  const std::string secret = environment_variable(kSecret).value_or("");
  hello.proof = {};
  static_assert(kRanksMax <= 256, "a byte names the rank that listens");
  std::vector<std::byte> message = {static_cast<std::byte>(side), static_cast<std::byte>(listener)};
  message.insert(message.end(), challenge.begin(), challenge.end());
  const auto said = std::as_bytes(std::span(&hello, 1));
  message.insert(message.end(), said.begin(), said.end());
  return hmac_sha256(std::as_bytes(std::span(secret)), message);
}

}  // namespace penstock::engine::tcp
