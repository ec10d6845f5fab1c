#include "mlaprefill/status.h"

namespace mlaprefill {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kOutOfRange:
      return "out_of_range";
    case StatusCode::kLimitExceeded:
      return "limit_exceeded";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kInactiveRows:
      return "inactive_rows";
    case StatusCode::kWorkspaceTooSmall:
      return "workspace_too_small";
    case StatusCode::kIoError:
      return "io_error";
    case StatusCode::kParseError:
      return "parse_error";
    case StatusCode::kDeviceError:
      return "device_error";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace mlaprefill
