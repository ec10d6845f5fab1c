// The named shapes of `mlaprefill bench`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mlaprefill::bench {

enum class Operation : uint8_t {
  kAttention,  ///< plain ragged attention on expanded q, k, v
  kLayer,      ///< gather, up-projection, attention
};

/// Rows of one request: `new_tokens` queries; context tokens come on top of them.
struct Request {
  int32_t new_tokens = 0;
  int32_t context = 0;
};

struct Shape {
  std::string name;
  Operation operation = Operation::kAttention;
  std::vector<Request> requests;
  bool causal =
      true;  ///< attention only: false attends `context` keys alone, unmasked, as a context chunk does
  bool quick = false;  ///< part of the default selection: seconds, not minutes, on two cores
  std::string about;
};

/// Every named shape, in the order they are listed.
const std::vector<Shape>& shapes();

}  // namespace mlaprefill::bench
