// What every function of the C ABI needs: handles, struct growth, strings, and the wall exceptions stop at.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>

#include "core/error.h"
#include "mlaprefill/backend.h"
#include "mlaprefill/c_api.h"
#include "mlaprefill/layer.h"
#include "mlaprefill/plan.h"

struct mlaprefill_plan {
  mlaprefill::Plan plan;
};

struct mlaprefill_backend {
  std::shared_ptr<const mlaprefill::Backend> backend;
};

struct mlaprefill_weights {
  std::shared_ptr<const mlaprefill::Backend> backend;
  std::shared_ptr<const mlaprefill::LayerWeights> weights;
};

struct mlaprefill_layer {
  std::shared_ptr<const mlaprefill::Backend> backend;
  mlaprefill::MlaLayer layer;
};

namespace mlaprefill::c_api {

/// Writes code and message to the caller's struct (if any) and returns the code.
mlaprefill_status report(StatusCode code, std::string_view message, mlaprefill_error* error) noexcept;

/// Copies a string as snprintf would.
void write_string(std::string_view text, char* buffer, size_t capacity, size_t* length_bytes);

/// Runs a body that returns Status; whatever it throws becomes a status.
template <typename Body>
mlaprefill_status guard(mlaprefill_error* error, Body&& body) noexcept {
  try {
    const Status status = body();
    return report(status.code(), status.message(), error);
  } catch (const std::bad_alloc&) {
    return report(StatusCode::kLimitExceeded, "host memory: must suffice for the call, got bad_alloc", error);
  } catch (const std::exception& exception) {
    return report(StatusCode::kInternal, exception.what(), error);
  } catch (...) {
    return report(StatusCode::kInternal, "unknown exception", error);
  }
}

inline Status require(const void* pointer, std::string_view where) {
  if (pointer == nullptr) return invalid("{}: must not be NULL", where);
  return {};
}

inline Status require_in_range(int64_t value, int64_t limit, std::string_view where) {
  if (value < 0 || value >= limit) return invalid("{}: must be in 0..{}, got {}", where, limit - 1, value);
  return {};
}

/// Copies a caller's struct over `known`, which holds the defaults: older callers have a shorter struct,
/// newer ones may have a longer one as long as what this library does not know is zero.
template <typename T>
Status read_struct(std::string_view where, const T* given, T& known) {
  MLAPREFILL_RETURN_IF_ERROR(require(given, where));
  const size_t size = given->struct_size;
  if (size < sizeof(size_t)) {
    return invalid("{}.struct_size: must be the size of the struct, got {}", where, size);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return error(StatusCode::kUnsupported,
                   "{}: must be at most {} bytes or zero after them, got byte {} set", where, sizeof(T), i);
    }
  }
  std::memcpy(&known, given, std::min(size, sizeof(T)));
  known.struct_size = sizeof(T);
  return {};
}

/// Copies `result` to the caller's struct, as much of it as the caller knows.
template <typename T>
Status write_struct(std::string_view where, T result, T* given) {
  MLAPREFILL_RETURN_IF_ERROR(require(given, where));
  const size_t size = given->struct_size;
  if (size < sizeof(size_t)) {
    return invalid("{}.struct_size: must be the size of the struct, got {}", where, size);
  }
  result.struct_size = size;
  std::memcpy(given, &result, std::min(size, sizeof(T)));
  return {};
}

}  // namespace mlaprefill::c_api
