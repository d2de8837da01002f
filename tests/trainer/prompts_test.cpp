#include "runtime/trainer/prompts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock::trainer {
namespace {

TEST(TokenTexts, JoinsWhatTokensStandFor) {
  // The second half of a character may be another token's.
  const TokenTexts texts("\xc3\xa4\xc3\xa4 b", std::vector<uint32_t>{1, 1, 0, 2, 2});
  EXPECT_EQ(texts.text_of(std::vector<int32_t>{0, 1, 2, 3, 4}), "\xc3\xa4\xc3\xa4 b");
  EXPECT_EQ(texts.text_of(std::vector<int32_t>{4, 2, 0}), " b\xc3");
  EXPECT_EQ(texts.text_of(std::vector<int32_t>{-1, 5, 1 << 30, 4}), " b");
  EXPECT_EQ(TokenTexts().text_of(std::vector<int32_t>{0}), "");
}

TEST(TokenTexts, BytesStandForThemselves) {
  EXPECT_EQ(TokenTexts::of_bytes().text_of(std::vector<int32_t>{'a', 0xe4, 256, 0}), std::string("a\xe4\0", 3));
}

TEST(TokenTexts, LengthsThatSayMoreThanThereIsLeadNowhereElse) {
  const TokenTexts texts("ab", std::vector<uint32_t>{1, 5});
  EXPECT_EQ(texts.text_of(std::vector<int32_t>{1}), std::string("b\0\0\0\0", 5));
}

}  // namespace
}  // namespace penstock::trainer
