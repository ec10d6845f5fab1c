#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace mlaprefill {
namespace {

constexpr int kMaxTemporaryNames = 1000;

Status system_error(const std::string& path, std::string_view action) {
  return error(StatusCode::kIoError, "{}: cannot {}: {}", path, action,
               std::generic_category().message(errno));
}

// The file a chain of symbolic links ends at, so that renaming replaces that file and keeps the links.
std::string resolve_links(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path target = std::filesystem::canonical(path, ignored);
  return ignored ? path : target.string();
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr size_t kMaxBytes = 64;
  std::string result = "'";
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + (text.size() > kMaxBytes ? "...'" : "'");
}

Result<InputFile> InputFile::open(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe nobody writes to would wait for ever.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return system_error(path, "open");
  InputFile file(path, descriptor, 0);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return system_error(path, "inspect");
  if (!S_ISREG(info.st_mode)) {
    return error(StatusCode::kIoError, "{}: must be a regular file, got a directory, device or pipe", path);
  }
  file.size_bytes_ = info.st_size;
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status InputFile::read_at(int64_t offset, std::span<std::byte> target) const {
  while (!target.empty()) {
    const ssize_t count = ::pread(descriptor_, target.data(), target.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(path_, "read");
    if (count == 0) {
      return error(StatusCode::kIoError, "{}: must hold {} more bytes at offset {}, got the end of the file",
                   path_, target.size(), offset);
    }
    target = target.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return {};
}

Result<std::string> read_file(const std::string& path, int64_t max_bytes) {
  auto file = InputFile::open(path);
  if (!file.ok()) return file.status();
  if (file->size_bytes() > max_bytes) {
    return error(StatusCode::kLimitExceeded, "{}: must be at most {} bytes, got {}", path, max_bytes,
                 file->size_bytes());
  }
  std::string text(static_cast<size_t>(file->size_bytes()), '\0');
  MLAPREFILL_RETURN_IF_ERROR(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  const std::string target = resolve_links(path);
  struct stat info {};
  if (::stat(target.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode))
      return error(StatusCode::kIoError, "{}: must be a file, got a directory", path);
    if (!S_ISREG(info.st_mode)) {
      const int descriptor = ::open(target.c_str(), O_WRONLY | O_CLOEXEC);
      if (descriptor < 0) return system_error(path, "open for writing");
      return OutputFile(target, "", descriptor);
    }
  }
  for (int attempt = 0; attempt < kMaxTemporaryNames; ++attempt) {
    std::string temporary_path = fmt::format("{}.tmp-{}-{}", target, ::getpid(), attempt);
    const int descriptor = ::open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) return OutputFile(target, std::move(temporary_path), descriptor);
    if (errno != EEXIST) return system_error(path, "create");
  }
  return error(StatusCode::kIoError, "{}: every temporary name beside it is taken, got {} files {}.tmp-*",
               path, kMaxTemporaryNames, path);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(path_, "write");
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

Status OutputFile::commit() {
  if (::close(std::exchange(descriptor_, -1)) != 0) return system_error(path_, "write");
  if (temporary_path_.empty()) return {};
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) return system_error(path_, "replace");
  temporary_path_.clear();
  return {};
}

}  // namespace mlaprefill
