// Status and Result: every failure is a code and one sentence of the form `where: requirement, got value`.
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mlaprefill {

enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,    ///< a field is malformed: missing, negative, decreasing, inconsistent with another
  kOutOfRange = 2,         ///< an index or id points outside what it indexes
  kLimitExceeded = 3,      ///< a dimension, count or product is over a stated limit
  kUnsupported = 4,        ///< well-formed, but no kernel of the chosen backend serves it
  kUnavailable = 5,        ///< the backend, ISA level or device cannot be used here
  kInactiveRows = 6,       ///< `strict` was asked for and the batch has rows without queries or keys
  kWorkspaceTooSmall = 7,  ///< the caller's memory is smaller than the plan's size query says
  kIoError = 8,            ///< a file could not be read or written
  kParseError = 9,         ///< a file's content is not what its format demands
  kDeviceError = 10,       ///< the device runtime reported an error
  kInternal = 11,          ///< a defect of this library
};

/// Lower-case name of a code, e.g. "invalid_argument".
std::string_view to_string(StatusCode code);

/// Outcome of an operation that returns nothing else.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace mlaprefill
