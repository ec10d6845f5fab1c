// Size of the device form of a plan, which Backend::upload writes. The backend that builds it asserts that
// its records fit.
#pragma once

#include <cstdint>

#include "core/checked.h"

namespace mlaprefill {

struct MetadataCounts {
  Checked64 passes = 0;
  Checked64 spans = 0;
  Checked64 tiles = 0;
  Checked64 blocks = 0;
  int64_t kv_splits = 0;  ///< room for so many more tiles in every pass
};

inline constexpr int64_t kMetadataHeaderBytes = 256;
inline constexpr int64_t kMetadataPassBytes = 256;
inline constexpr int64_t kMetadataSpanBytes = 64;
inline constexpr int64_t kMetadataTileBytes = 64;
inline constexpr int64_t kMetadataBlockBytes = 4;

constexpr Checked64 metadata_size_bytes(const MetadataCounts& counts) {
  const int64_t pass_bytes = kMetadataPassBytes + kMetadataTileBytes * counts.kv_splits;
  return Checked64(kMetadataHeaderBytes) + counts.passes * pass_bytes + counts.spans * kMetadataSpanBytes +
         counts.tiles * kMetadataTileBytes + counts.blocks * kMetadataBlockBytes;
}

}  // namespace mlaprefill
