#include "io/traces/text.h"

#include <gtest/gtest.h>

#include "io/sha256.h"

namespace mlaprefill {
namespace {

TEST(LineReader, TakesBothEndingsBlankLinesAndAMissingLastNewline) {
  LineReader lines("a\r\n\n \t\r\nb\nc");
  EXPECT_EQ(lines.next(), "a");
  EXPECT_EQ(lines.line_number(), 1);
  EXPECT_EQ(lines.next(), "b");
  EXPECT_EQ(lines.line_number(), 4);
  EXPECT_EQ(lines.next(), "c");
  EXPECT_EQ(lines.line_number(), 5);
  EXPECT_EQ(lines.next(), std::nullopt);
}

TEST(Text, RemovesAByteOrderMark) {
  EXPECT_EQ(without_bom("\xEF\xBB\xBFx"), "x");
  EXPECT_EQ(without_bom("\xEF\xBBx"), "\xEF\xBBx");
}

TEST(Csv, SplitsFieldsAndKeepsCommasInQuotes) {
  EXPECT_EQ(split_csv("a, b ,"), (std::vector<std::string_view>{"a", "b", ""}));
  EXPECT_EQ(split_csv("\"x,y\",2"), (std::vector<std::string_view>{"x,y", "2"}));
}

TEST(Numbers, MustFillTheField) {
  EXPECT_EQ(parse_int64(" 17 "), 17);
  EXPECT_EQ(parse_int64("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_int64("9223372036854775808"), std::nullopt);
  EXPECT_EQ(parse_int64("1.0"), std::nullopt);
  EXPECT_EQ(parse_int64(""), std::nullopt);
  EXPECT_EQ(parse_finite("2.5"), 2.5);
  EXPECT_EQ(parse_finite("inf"), std::nullopt);
  EXPECT_EQ(parse_finite("nan"), std::nullopt);
  EXPECT_EQ(parse_finite("2.5s"), std::nullopt);
}

TEST(DateTime, ReadsSevenFractionDigitsAndZones) {
  const auto base = parse_datetime_ns("2023-11-16 18:17:03");
  ASSERT_TRUE(base);
  EXPECT_EQ(*base, 1700158623LL * 1000000000);
  EXPECT_EQ(*parse_datetime_ns("2023-11-16 18:17:03.9799600") - *base, 979960000);
  EXPECT_EQ(*parse_datetime_ns("2023-11-16T18:17:03Z"), *base);
  EXPECT_EQ(*parse_datetime_ns("2023-11-16 19:17:03+01:00"), *base);
  EXPECT_EQ(*parse_datetime_ns("2023-11-16 16:47:03-01:30"), *base);
}

TEST(DateTime, RefusesWhatIsNoDate) {
  for (const char* text :
       {"", "2023-11-16", "2023-13-16 18:17:03", "2023-02-30 18:17:03", "2023-11-16 24:17:03",
        "2023-11-16 18:17:03.", "2023-11-16 18:17:03.1234567890", "2023-11-16 18:17:03 x",
        "1969-11-16 18:17:03", "9999-11-16 18:17:03", "2023-11-16 18:17:03+1"}) {
    EXPECT_EQ(parse_datetime_ns(text), std::nullopt) << text;
  }
}

TEST(Sha256, MatchesTheStandardsExamples) {
  Sha256 empty;
  EXPECT_EQ(empty.hex_digest(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.update("a");
  abc.update("bc");
  EXPECT_EQ(abc.hex_digest(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 two_blocks;
  two_blocks.update("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq");
  EXPECT_EQ(two_blocks.hex_digest(), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

}  // namespace
}  // namespace mlaprefill
