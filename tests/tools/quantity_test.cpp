#include "tools/penstock/quantity.h"

#include <gtest/gtest.h>

#include "tiering/tier.h"

namespace penstock::tools {
namespace {

TEST(Quantity, ReadsSizesInBinaryAndDecimalUnits) {
  EXPECT_EQ(*parse_bytes("4096"), 4096u);
  EXPECT_EQ(*parse_bytes("17B"), 17u);
  EXPECT_EQ(*parse_bytes("4KiB"), 4096u);
  EXPECT_EQ(*parse_bytes("8gib"), 8 * kGiB);
  EXPECT_EQ(*parse_bytes("24GIB"), 24 * kGiB);
  EXPECT_EQ(*parse_count("1K"), 1000u);
  EXPECT_EQ(*parse_bytes("1.5MiB"), 1536 * kKiB);
  EXPECT_EQ(*parse_bytes("200GiB"), 200 * kGiB);
  EXPECT_EQ(*parse_bytes("2TiB"), 2048 * kGiB);
  EXPECT_EQ(*parse_bytes("3kB"), 3000u);
  EXPECT_EQ(*parse_bytes("1.5MB"), 1500000u);
  EXPECT_EQ(*parse_bytes("7GB"), 7000000000u);
  EXPECT_EQ(*parse_bytes("1TB"), 1000000000000u);
  EXPECT_EQ(*parse_bytes("2.2GiB"), 2362232013u);  // the nearest byte
  EXPECT_EQ(*parse_bytes("1.13kB"), 1130u);
}

TEST(Quantity, ReadsSizesAsFioAndDdAreGivenThem) {
  for (const char* written : {"4k", "4K"}) EXPECT_EQ(*parse_bytes(written), 4096u) << written;
  for (const char* written : {"64m", "64M"}) EXPECT_EQ(*parse_bytes(written), 64 * kMiB) << written;
  for (const char* written : {"8g", "8G"}) EXPECT_EQ(*parse_bytes(written), 8 * kGiB) << written;
  for (const char* written : {"2t", "2T"}) EXPECT_EQ(*parse_bytes(written), 2048 * kGiB) << written;
  EXPECT_EQ(*parse_bytes("1.5G"), 1536 * kMiB);
}

TEST(Quantity, RefusesNonsenseSizesWithAWayOut) {
  for (const char* nonsense : {"", " ", "x", "-1", "-0", "1XB", "1KB", "1 MiB", "1MiB ", "1e3", "0x10", "nan", "inf",
                               "1.5", "9999999999TiB", "1..5MiB", "0.3B", "0.0001KiB", "+4KiB"}) {
    const Result<uint64_t> bytes = parse_bytes(nonsense);
    ASSERT_FALSE(bytes.ok()) << nonsense << " was read as " << *bytes;
    EXPECT_EQ(bytes.status().code(), Code::kUsage);
    EXPECT_NE(bytes.status().message().find(nonsense), std::string::npos);
    EXPECT_FALSE(bytes.status().remedy().empty());
  }
}

TEST(Quantity, ReadsTimes) {
  EXPECT_DOUBLE_EQ(*parse_seconds("2"), 2);
  EXPECT_DOUBLE_EQ(*parse_seconds("250ms"), 0.25);
  EXPECT_DOUBLE_EQ(*parse_seconds("1.5s"), 1.5);
  EXPECT_DOUBLE_EQ(*parse_seconds("2min"), 120);
  for (const char* nonsense : {"", "s", "-1s", "3h", "1 s", "inf"})
    EXPECT_FALSE(parse_seconds(nonsense).ok()) << nonsense;
}

TEST(Quantity, ReadsCounts) {
  EXPECT_EQ(*parse_count("12"), 12u);
  EXPECT_EQ(*parse_count("3k"), 3000u);
  EXPECT_EQ(*parse_count("350M"), 350000000u);
  EXPECT_EQ(*parse_count("1.3B"), 1300000000u);
  EXPECT_EQ(*parse_count("7e9"), 7000000000u);
  for (const char* nonsense : {"", "7G", "-7B", "0.5", "B", "1e40", "1e-3", "-7e9", "7e9x", "nan", "inf"})
    EXPECT_FALSE(parse_count(nonsense).ok()) << nonsense;
}

TEST(Quantity, ReadsRates) {
  EXPECT_DOUBLE_EQ(*parse_rate("12.5"), 12.5);
  EXPECT_DOUBLE_EQ(*parse_rate("1.5e14"), 1.5e14);
  for (const char* nonsense : {"", "0", "-1", "1e999", "nan", "12.5 GB/s"}) {
    const Result<double> rate = parse_rate(nonsense);
    ASSERT_FALSE(rate.ok()) << nonsense << " was read as " << *rate;
    EXPECT_FALSE(rate.status().remedy().empty());
  }
}

TEST(Quantity, RefusesTimesAndRatesThatLeadToInfinity) {
  const std::string huge = "1" + std::string(308, '0');
  for (const std::string& time : {huge, huge + "min", std::string("20000000min")})
    EXPECT_FALSE(parse_seconds(time).ok()) << time;
  for (const char* rate : {"1e308B", "1e25", "1e-7", "1e-320"}) EXPECT_FALSE(parse_rate(rate).ok()) << rate;
  EXPECT_DOUBLE_EQ(*parse_rate("1e24"), 1e24);
}

TEST(Quantity, ShowsTheLargestNumbersWhole) {
  EXPECT_EQ(fixed(1e300, 2).size(), 304u);
  EXPECT_EQ(seconds_text(1e300).substr(0, 3), "115");
}

TEST(Quantity, ShowsAsAFlagWhatItReadsBack) {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, kMiB, 3 * kGiB, kMiB + 512, 5000 * kGiB,
                         uint64_t{5'000'000'000}, uint64_t{8'000'000'000}}) {
    EXPECT_EQ(*parse_bytes(bytes_flag_text(bytes)), bytes);
  }
  EXPECT_EQ(bytes_flag_text(8'000'000'000), "8GB");
}

TEST(Quantity, ShowsCountsToThreeDigitsAndNoZeros) {
  EXPECT_EQ(short_count_text(9999), "9999");
  EXPECT_EQ(short_count_text(35'400), "35.4k");
  EXPECT_EQ(short_count_text(999'600), "1M");
  EXPECT_EQ(short_count_text(40'001'000), "40M");
  EXPECT_EQ(short_count_text(124'439'808), "124M");
  EXPECT_EQ(short_count_text(999'950'000), "1B");
  EXPECT_EQ(short_count_text(6'738'415'616), "6.74B");
  EXPECT_EQ(short_count_text(405e9), "405B");
}

TEST(Quantity, ShowsTimesInTheirUnit) {
  EXPECT_EQ(seconds_text(0.0012), "1.2 ms");
  EXPECT_EQ(seconds_text(0.25), "250 ms");
  EXPECT_EQ(seconds_text(12.5), "12 s");
  EXPECT_EQ(seconds_text(200), "3 min 20 s");
}

}  // namespace
}  // namespace penstock::tools
