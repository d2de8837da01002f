// The examples of FIPS 180-4 and RFC 4231.
#include "runtime/engine/ranks/hmac_sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock::engine {
namespace {

std::span<const std::byte> bytes_of(const std::string& words) { return std::as_bytes(std::span(words)); }

std::string hexadecimal(const Digest& digest) {
  std::string words;
  for (std::byte each : digest) {
    for (int shift : {4, 0}) words += "0123456789abcdef"[std::to_integer<int>(each) >> shift & 15];
  }
  return words;
}

TEST(HmacSha256, HashesAsTheStandardSays) {
  EXPECT_EQ(hexadecimal(sha256(bytes_of(""))), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hexadecimal(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hexadecimal(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(HmacSha256, ProvesAsTheStandardSays) {
  EXPECT_EQ(hexadecimal(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hexadecimal(hmac_sha256(bytes_of(std::string(131, '\xaa')),
                                    bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, TellsDigestsApart) {
  const Digest one = sha256(bytes_of("abc"));
  Digest other = one;
  EXPECT_TRUE(is_same(one, other));
  other.back() ^= std::byte{1};
  EXPECT_FALSE(is_same(one, other));
}

}  // namespace
}  // namespace penstock::engine
