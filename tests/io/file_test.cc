#include "io/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <span>
#include <string>

#include "io/temporary_folder.h"

namespace mlaprefill {
namespace {

TEST(Quote, EscapesControlCharactersAndCuts) {
  EXPECT_EQ(quote("a\x1b[2J\n"), "'a\\x1b[2J\\x0a'");
  EXPECT_EQ(quote(std::string(65, 'x')), "'" + std::string(64, 'x') + "...'");
}

TEST(InputFile, ReadsFromAnOffsetAndStopsAtTheEnd) {
  const TemporaryFolder folder;
  const auto file = InputFile::open(folder.write("data", "0123456789"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size_bytes(), 10);
  std::array<char, 4> text{};
  ASSERT_TRUE(file->read_at(3, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(std::string(text.data(), 4), "3456");
  const Status status = file->read_at(8, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(status.message(),
            folder.path("data") + ": must hold 2 more bytes at offset 10, got the end of the file");
}

TEST(InputFile, RefusesWhatIsNotARegularFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(InputFile::open(folder.path("")).status().code(), StatusCode::kIoError);
  EXPECT_EQ(InputFile::open("/dev/zero").status().message(),
            "/dev/zero: must be a regular file, got a directory, device or pipe");
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_FALSE(InputFile::open(folder.path("pipe")).ok());
  EXPECT_EQ(InputFile::open(folder.path("none")).status().message(),
            folder.path("none") + ": cannot open: No such file or directory");
}

TEST(ReadFile, BoundsTheSize) {
  const TemporaryFolder folder;
  const std::string path = folder.write("data", "0123456789");
  EXPECT_EQ(read_file(path, 10).value(), "0123456789");
  EXPECT_EQ(read_file(path, 9).status().message(), path + ": must be at most 9 bytes, got 10");
}

TEST(OutputFile, ReplacesOnCommitAlone) {
  const TemporaryFolder folder;
  const std::string path = folder.write("out", "old");
  {
    auto file = OutputFile::create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->write("new").ok());
    EXPECT_EQ(folder.read("out"), "old");
  }
  EXPECT_EQ(folder.read("out"), "old");
  EXPECT_EQ(folder.file_count(), 1);
  auto file = OutputFile::create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->write("new").ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(folder.read("out"), "new");
  EXPECT_EQ(folder.file_count(), 1);
}

TEST(OutputFile, FollowsLinksAndKeepsThem) {
  const TemporaryFolder folder;
  folder.write("target", "old");
  std::filesystem::create_symlink("target", folder.path("link"));
  auto file = OutputFile::create(folder.path("link"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->write("new").ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path("link")));
  EXPECT_EQ(folder.read("target"), "new");
}

TEST(OutputFile, WritesDevicesDirectly) {
  auto file = OutputFile::create("/dev/null");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->write("text").ok());
  EXPECT_TRUE(file->commit().ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(OutputFile, SaysWhyItCannotBeWritten) {
  const TemporaryFolder folder;
  EXPECT_EQ(OutputFile::create(folder.path("none/out")).status().message(),
            folder.path("none/out") + ": cannot create: No such file or directory");
  std::filesystem::create_directory(folder.path("folder"));
  EXPECT_EQ(OutputFile::create(folder.path("folder")).status().message(),
            folder.path("folder") + ": must be a file, got a directory");
  auto full = OutputFile::create("/dev/full");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->write("text").message(), "/dev/full: cannot write: No space left on device");
}

}  // namespace
}  // namespace mlaprefill
