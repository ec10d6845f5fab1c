// Regular files: bounded reading, and writing that leaves the old content alone until the new one is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mlaprefill/status.h"

namespace mlaprefill {

/// Text from a file made safe to print: control characters escaped, cut after 64 bytes, in single quotes.
std::string quote(std::string_view text);

/// A regular file opened for reading. Directories, devices and pipes are refused.
class InputFile {
 public:
  static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }

  /// Fills `target` from byte `offset` on; fails when the file ends before it is full. Re-entrant.
  Status read_at(int64_t offset, std::span<std::byte> target) const;

 private:
  InputFile(std::string path, int descriptor, int64_t size_bytes)
      : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

  std::string path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
};

/// The whole content of a regular file of at most `max_bytes`.
Result<std::string> read_file(const std::string& path, int64_t max_bytes);

/// A file being written under a temporary name beside `path`. Until commit() the file at `path` stays as it
/// was; without commit() the temporary file is removed. A symbolic link is followed. Devices and pipes, which
/// cannot be replaced, are written directly.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

  /// Puts the written content in place of `path`.
  Status commit();

 private:
  OutputFile(std::string path, std::string temporary_path, int descriptor)
      : path_(std::move(path)), temporary_path_(std::move(temporary_path)), descriptor_(descriptor) {}

  std::string path_;
  std::string temporary_path_;  ///< empty: written directly
  int descriptor_ = -1;
};

}  // namespace mlaprefill
