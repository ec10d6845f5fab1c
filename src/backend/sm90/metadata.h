// The device form of a plan: everything the kernels of one forward pass read besides the tensors.
//
//   Header | PassRecord x passes | arrivals | AttentionEntry x tiles and splits | GatherSpan x spans | int32
//   block ids
//
// Where the records of a pass and the entries lie depends on the number of passes and the most splits alone,
// and the kernels find the rest through them, so one captured graph serves every plan of the same bounds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/sm90/attention_params.h"
#include "backend/sm90/schedule.h"
#include "mlaprefill/backend.h"
#include "mlaprefill/plan.h"
#include "plan/metadata_size.h"

namespace mlaprefill::sm90 {

struct MetadataHeader {
  int64_t spans_offset_bytes = 0;
  int64_t blocks_offset_bytes = 0;
  int64_t block_size = 0;
};

struct PassRecord {
  std::array<AttentionSection, kSections + 1> sections{};  ///< those of Schedule
  uint32_t item_counter = 0;
  int32_t span_begin = 0;
  int32_t span_count = 0;
};

/// Rows [row_begin, row_begin + rows) of the pass hold keys key_begin.. of one request.
struct GatherSpan {
  int64_t key_begin = 0;
  int64_t block_begin = 0;    ///< the request's first block id
  int64_t context_len = 0;    ///< keys below it come from the cache, the others are new
  int64_t first_new_row = 0;  ///< row of the request's first new token
  int32_t row_begin = 0;
  int32_t rows = 0;
};

static_assert(sizeof(MetadataHeader) <= kMetadataHeaderBytes);
static_assert(sizeof(PassRecord) <= kMetadataPassBytes);
static_assert(sizeof(AttentionEntry) + arrivals_bytes(1) <= kMetadataTileBytes);  // for every split
static_assert(sizeof(GatherSpan) <= kMetadataSpanBytes);

constexpr int64_t pass_record_offset_bytes(int64_t pass) {
  return kMetadataHeaderBytes + pass * kMetadataPassBytes;
}
constexpr int64_t entries_offset_bytes(int64_t passes, int64_t max_kv_splits) {
  return pass_record_offset_bytes(passes) + arrivals_bytes(max_kv_splits);
}

/// Writes the plan's metadata and returns how many bytes of it there are, at most
/// plan.workspace.metadata_bytes.
int64_t write_metadata(const Plan& plan, std::byte* out);

/// The workspace of an attention call without a plan: metadata, then the partial results of splits.
struct CallLayout {
  int64_t metadata_bytes = 0;
  int64_t max_kv_splits = 0;
  int64_t total_bytes = 0;
};

/// Follows from the tensors' shapes, the spans and `invariant`. Spans need not have been validated.
CallLayout lay_out_call(const AttentionArgs& args, int64_t most_kv_splits);

/// The schedule of such a call. Splits no keys if that alone would make it too large for kernel parameters.
Schedule schedule_call(const AttentionArgs& args, int64_t max_kv_splits);

/// Bytes of its metadata: a header, one pass record, arrivals and entries.
inline int64_t call_metadata_bytes(const Schedule& schedule) {
  return entries_offset_bytes(1, schedule.kv_splits) +
         static_cast<int64_t>(schedule.entries.size() * sizeof(AttentionEntry));
}

void write_call_metadata(const Schedule& schedule, std::byte* out);

}  // namespace mlaprefill::sm90
