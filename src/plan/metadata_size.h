// Size of the device form of a plan, which Backend::upload writes. The backend that builds it asserts that
// its records fit.
#pragma once

#include <cstdint>

namespace mlaprefill {

struct MetadataCounts {
  int64_t passes = 0;
  int64_t spans = 0;
  int64_t tiles = 0;
  int64_t blocks = 0;
  int64_t kv_splits = 0;  ///< most of a pass
};

inline constexpr int64_t kMetadataHeaderBytes = 256;
inline constexpr int64_t kMetadataPassBytes = 256;
inline constexpr int64_t kMetadataSpanBytes = 64;
inline constexpr int64_t kMetadataTileBytes = 64;
inline constexpr int64_t kMetadataBlockBytes = 4;

/// Bytes for so many records, a multiple of 256.
constexpr int64_t metadata_size_bytes(const MetadataCounts& counts) {
  const int64_t pass_bytes = kMetadataPassBytes + kMetadataTileBytes * counts.kv_splits;
  const int64_t bytes = kMetadataHeaderBytes + pass_bytes * counts.passes +
                        kMetadataSpanBytes * counts.spans + kMetadataTileBytes * counts.tiles +
                        kMetadataBlockBytes * counts.blocks;
  return (bytes + 255) / 256 * 256;
}

}  // namespace mlaprefill
