#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors_file.h"
#include "io/safetensors_writer.h"
#include "io/temporary_folder.h"

namespace mlaprefill {
namespace {

std::string file_image(std::string_view header, std::string_view data) {
  std::string image;
  for (int i = 0; i < 8; ++i) image += static_cast<char>((header.size() >> (8 * i)) & 0xFF);
  return image.append(header).append(data);
}

// The message of the error that opening this image gives, without the path; empty when it opens.
std::string error_of(const std::string& image) {
  const TemporaryFolder folder;
  const std::string path = folder.write("case.safetensors", image);
  const auto file = SafetensorsFile::open(path);
  if (file.ok()) return "";
  EXPECT_EQ(file.status().code(), StatusCode::kParseError);
  EXPECT_TRUE(file.status().message().starts_with(path + ": ")) << file.status().message();
  return file.status().message().substr(path.size() + 2);
}

std::string error_of(std::string_view header, std::string_view data) {
  return error_of(file_image(header, data));
}

TEST(Safetensors, ReadsTensorsInAnyOrderPaddedAndMisaligned) {
  const TemporaryFolder folder;
  // The header's length is odd, and `wide` starts at an odd byte: no alignment may be taken for granted.
  const std::string header =
      R"({"wide":{"shape":[1,2],"data_offsets":[3,11],"dtype":"F32"},"__metadata__":{"format":"pt","a":""},)"
      R"("bytes":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"one":{"dtype":"I64","shape":[],)"
      R"("data_offsets":[11,19]},"none":{"dtype":"BF16","shape":[0,4],"data_offsets":[19,19]}}   )";
  const float wide[2] = {1.5f, -2.0f};
  const int64_t one = -7;
  std::string data = "abc";
  data.append(reinterpret_cast<const char*>(wide), sizeof wide);
  data.append(reinterpret_cast<const char*>(&one), sizeof one);
  const auto file = SafetensorsFile::open(folder.write("x", file_image(header, data)));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->header().metadata.at("format"), "pt");

  const auto tensor = file->read("wide");
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->view.dtype, DType::kF32);
  EXPECT_EQ(tensor->view.rank, 2);
  EXPECT_EQ(tensor->view.stride[0], 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->view.data) % Buffer::kAlignmentBytes, 0u);
  EXPECT_EQ(std::memcmp(tensor->view.data, wide, sizeof wide), 0);
  EXPECT_EQ(*static_cast<const int64_t*>(file->read("one")->view.data), -7);
  EXPECT_EQ(file->read("none")->elements(), 0);
  EXPECT_EQ(file->read("absent").status().message(),
            folder.path("x") + ": absent: must be in the file, got no such tensor");
}

TEST(Safetensors, AnEmptyFileHasNoTensors) {
  EXPECT_EQ(error_of("{}", ""), "");
  EXPECT_EQ(error_of(R"({"__metadata__":null})", ""), "");
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryFolder folder;
  const std::array<uint16_t, 3> narrow{1, 2, 3};
  const std::array<float, 2> wide{4.0f, 5.0f};
  auto out = OutputFile::create(folder.path("x"));
  ASSERT_TRUE(out.ok());
  ASSERT_TRUE(write_safetensors(out.value(),
                                {{"narrow", ConstTensor(narrow.data(), DType::kBF16, {3, 1})},
                                 {"wide", ConstTensor(wide.data(), DType::kF32, {1, 2})},
                                 {"none", ConstTensor(nullptr, DType::kF8E4M3, {0, 7})}},
                                {{"key", "value \"quoted\""}})
                  .ok());
  ASSERT_TRUE(out->commit().ok());
  const auto file = SafetensorsFile::open(folder.path("x"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->header().metadata.at("key"), "value \"quoted\"");
  EXPECT_EQ(file->header().tensors.at("none").dtype_name, "F8_E4M3");
  EXPECT_EQ(file->header().tensors.at("wide").begin_bytes, 0) << "wider dtypes come first";
  EXPECT_EQ(folder.read("x").find("}}"), folder.read("x").rfind("}}"));
  EXPECT_EQ((folder.read("x").size() - 8 - 6) % 8, 0u) << "the data starts at a multiple of 8";
  EXPECT_EQ(std::memcmp(file->read("narrow")->view.data, narrow.data(), 6), 0);
  EXPECT_EQ(std::memcmp(file->read("wide")->view.data, wide.data(), 8), 0);
}

TEST(Safetensors, RefusesBadLengths) {
  EXPECT_EQ(error_of(std::string("\x01\x02")), "must start with 8 bytes of header length, got 2 bytes");
  EXPECT_EQ(error_of(std::string("\x05\0\0\0\0\0\0\0{}", 10)), "header length must be <= 2 bytes, got 5");
  EXPECT_EQ(error_of(std::string(8, '\xff') + "{}"),
            "header length must be <= 2 bytes, got 18446744073709551615");
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string image = file_image(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"k":"v"}})", "01234567");
  ASSERT_EQ(error_of(image), "");
  for (size_t size = 0; size < image.size(); ++size) EXPECT_NE(error_of(image.substr(0, size)), "") << size;
  EXPECT_EQ(error_of(image + "x"), "must end after its 8 data bytes, got 9");
}

TEST(Safetensors, RefusesWhatIsNotTheFormat) {
  EXPECT_EQ(error_of(" {}", ""), "header must start with '{', got ' '");
  EXPECT_EQ(error_of("", ""), "header must start with '{', got ''");
  EXPECT_NE(error_of("{\"a\":", "").find("header must be JSON, got an error at byte 6"), std::string::npos);
  EXPECT_NE(error_of("{} x", "").find("header must be JSON"), std::string::npos);
  EXPECT_NE(error_of("{\"\xff\":1}", "").find("header must be JSON"), std::string::npos);
  EXPECT_EQ(error_of(R"({"a":1})", ""), "'a': must be an object, got 1");
  EXPECT_EQ(error_of(R"({"a":null})", ""), "'a': must be an object, got null");
  EXPECT_EQ(error_of(R"({"__metadata__":{"k":1}})", ""), "'__metadata__': 'k': must be a string, got 1");
  EXPECT_EQ(error_of(R"({"__metadata__":{"k":{}}})", ""),
            "'__metadata__': 'k': must be a string, got an object");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[[]]}})", ""),
            "'a': shape: must be integers in 0 .. 2^63 - 1, got an array");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[-1]}})", ""),
            "'a': shape: must be integers in 0 .. 2^63 - 1, got -1");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[2.0]}})", ""),
            "'a': shape: must be integers in 0 .. 2^63 - 1, got 2.0");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[9223372036854775808]}})", ""),
            "'a': shape: must be integers in 0 .. 2^63 - 1, got 9223372036854775808");
  EXPECT_EQ(error_of(R"({"a":{"dtype":["U8"]}})", ""), "'a': dtype: must be a string, got an array");
  EXPECT_EQ(error_of(R"({"a":{"shape":"U8"}})", ""), "'a': shape: must be an array, got the string 'U8'");
  EXPECT_EQ(error_of(R"({"a":{"data_offsets":[0,1,2]}})", ""),
            "'a': data_offsets: must be two integers in 0 .. 2^63 - 1, got 2");
  EXPECT_EQ(error_of(R"({"a":{"data_offsets":[0]}})", ""), "'a': data_offsets must be two numbers, got 1");
  EXPECT_EQ(error_of(R"({"a":{"strides":[1]}})", ""),
            "'a': fields must be dtype, shape and data_offsets, got 'strides'");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[0]}})", ""), "'a': must have data_offsets, got none");
}

TEST(Safetensors, RefusesRepeatedNames) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})", ""),
            "'a': must appear once, got it again");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","dtype":"U8"}})", ""), "'dtype': must appear once, got it again");
  EXPECT_EQ(error_of(R"({"__metadata__":{"k":"1","k":"2"}})", ""), "'k': must appear once, got it again");
  EXPECT_EQ(error_of(R"({"__metadata__":{},"__metadata__":{}})", ""),
            "'__metadata__': must appear once, got it again");
}

TEST(Safetensors, NestingCostsNothing) {
  std::string deep = R"({"a":)" + std::string(100'000, '[');
  EXPECT_EQ(error_of(deep, ""), "'a': must be an object, got an array");
}

TEST(Safetensors, SizesAgreeInSixtyFourBits) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "01234567"),
            "'a': data_offsets must span 12 bytes for F32 [3], got 8");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "01234567"),
            "'a': data_offsets must not decrease, got [8, 0]");
  // 2^62 floats are 2^64 bytes: zero in wrapped arithmetic.
  EXPECT_EQ(error_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", ""),
            "'a': size in bits must fit 63 bits, got shape [4611686018427387904]");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", "0"),
            "'a': size must be whole bytes, got 12 bits");
}

TEST(Safetensors, TensorsTileTheData) {
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                     R"("b":{"dtype":"U8","shape":[3],"data_offsets":[3,6]}})",
                     "012345"),
            "'b': data_offsets must start at 4, where the tensor before it ends, got 3");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "01"),
            "'a': data_offsets must start at 0, where the tensor before it ends, got 1");
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "012"),
            "'a': data_offsets must end within the 3 data bytes, got 4");
}

TEST(Safetensors, DTypesOfTheFormatAreKnownAndOursAreRead) {
  const TemporaryFolder folder;
  EXPECT_EQ(
      error_of(R"({"a":{"dtype":"F8_E4M3FN","shape":[1],"data_offsets":[0,1]}})", "0"),
      "'a': dtype must be one of F32, F16, BF16, F8_E4M3, U8, I32, I64, F64, F8_E5M2, F8_E8M0, F6_E2M3, "
      "F6_E3M2, F4, BOOL, I8, I16, U16, U32, U64, C64, got 'F8_E4M3FN'");
  const std::string path = folder.write(
      "x", file_image(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[8,9]},)"
                      R"("c":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[9,9]}})",
                      "012345678"));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->read("a").status().message(),
            path + ": a: dtype must be one of F32, F16, BF16, F8_E4M3, U8, I32, I64, got F64");
  EXPECT_EQ(file->read("b").status().message(), path + ": b: shape: must have at most 4 dimensions, got 5");
  EXPECT_EQ(file->read("c").status().message(),
            path + ": c: shape: product must fit 64 bits, got [0, 4294967296, 4294967296]");
}

}  // namespace
}  // namespace mlaprefill
