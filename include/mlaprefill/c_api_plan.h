/* The part of the C ABI that needs no backend: status, dims, tensors, plans. Include c_api.h. */
#ifndef MLAPREFILL_C_API_PLAN_H_
#define MLAPREFILL_C_API_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MLAPREFILL_API __attribute__((visibility("default")))
#else
#define MLAPREFILL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status.h ---- */

typedef int32_t mlaprefill_status;
enum {
  MLAPREFILL_OK = 0,
  MLAPREFILL_INVALID_ARGUMENT = 1,
  MLAPREFILL_OUT_OF_RANGE = 2,
  MLAPREFILL_LIMIT_EXCEEDED = 3,
  MLAPREFILL_UNSUPPORTED = 4,
  MLAPREFILL_UNAVAILABLE = 5,
  MLAPREFILL_INACTIVE_ROWS = 6,
  MLAPREFILL_WORKSPACE_TOO_SMALL = 7,
  MLAPREFILL_IO_ERROR = 8,
  MLAPREFILL_PARSE_ERROR = 9,
  MLAPREFILL_DEVICE_ERROR = 10,
  MLAPREFILL_INTERNAL = 11
};

typedef struct mlaprefill_error {
  size_t struct_size;
  size_t message_length; /* of the whole message, even where `message` holds only its beginning */
  mlaprefill_status code;
  char message[1000];
} mlaprefill_error;
#define MLAPREFILL_ERROR_INIT                         \
  {                                                   \
    sizeof(mlaprefill_error), 0, MLAPREFILL_OK, { 0 } \
  }

/* Lower-case name of a code, "unknown" for other numbers. Never NULL. */
MLAPREFILL_API const char* mlaprefill_status_name(mlaprefill_status code);
/* "major.minor.patch" of the library that is loaded. */
MLAPREFILL_API const char* mlaprefill_version(void);

/* ---- dims.h ---- */

typedef struct mlaprefill_dims {
  size_t struct_size;
  int32_t num_heads;
  int32_t kv_lora_rank;
  int32_t qk_nope_head_dim;
  int32_t qk_rope_head_dim;
  int32_t v_head_dim;
  double softmax_scale;
} mlaprefill_dims;
#define MLAPREFILL_DIMS_INIT \
  { sizeof(mlaprefill_dims), 0, 0, 0, 0, 0, 0.0 }

MLAPREFILL_API mlaprefill_status mlaprefill_validate_dims(const mlaprefill_dims* dims,
                                                          mlaprefill_error* error);
MLAPREFILL_API double mlaprefill_yarn_mscale(double factor, double mscale_all_dim);
MLAPREFILL_API double mlaprefill_yarn_softmax_scale(int64_t qk_head_dim, double factor,
                                                    double mscale_all_dim);

/* ---- tensor.h ---- */

enum {
  MLAPREFILL_F32 = 0,
  MLAPREFILL_F16 = 1,
  MLAPREFILL_BF16 = 2,
  MLAPREFILL_F8_E4M3 = 3,
  MLAPREFILL_U8 = 4,
  MLAPREFILL_I32 = 5,
  MLAPREFILL_I64 = 6
};

/* A strided view; strides in elements; rank 0: absent. Inputs are never written through `data`. */
typedef struct mlaprefill_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t shape[4];
  int64_t stride[4];
} mlaprefill_tensor;
#define MLAPREFILL_TENSOR_INIT               \
  {                                          \
    NULL, 0, 0, {0, 0, 0, 0}, { 0, 0, 0, 0 } \
  }

enum { MLAPREFILL_LSE_NATURAL = 0, MLAPREFILL_LSE_LOG2 = 1 };

/* data NULL: not wanted. */
typedef struct mlaprefill_lse {
  float* data;
  int64_t head_stride;
  int64_t token_stride;
  int32_t base;
  int32_t reserved; /* padding */
} mlaprefill_lse;
#define MLAPREFILL_LSE_INIT \
  { NULL, 0, 1, MLAPREFILL_LSE_NATURAL, 0 }

/* Bytes of one element, 0 for an unknown dtype. */
MLAPREFILL_API int64_t mlaprefill_dtype_size_bytes(int32_t dtype);
/* Row-major contiguous view of `rank` (1..4) extents; any other rank gives an absent tensor. */
MLAPREFILL_API mlaprefill_tensor mlaprefill_contiguous(void* data, int32_t dtype, int32_t rank,
                                                       const int64_t* shape);

/* ---- plan.h ---- */

enum {
  MLAPREFILL_MODE_BRIDGE = 0,
  MLAPREFILL_MODE_MIN_CONTINUATION = 1,
  MLAPREFILL_MODE_VLLM = 2,
  MLAPREFILL_MODE_EVEN_SPLIT = 3
};
enum { MLAPREFILL_PASS_CONTEXT = 0, MLAPREFILL_PASS_NEW = 1, MLAPREFILL_PASS_JOINT = 2 };
enum { MLAPREFILL_VERDICT_ACTIVE = 0, MLAPREFILL_VERDICT_MIXED = 1, MLAPREFILL_VERDICT_EMPTY = 2 };

/* RaggedBatch. query_start_loc has num_requests + 1 elements, the other arrays num_requests; query_lens,
 * seq_lens and block_table may be NULL. Nothing is kept after the call. */
typedef struct mlaprefill_batch {
  size_t struct_size;
  int64_t num_requests;
  const int32_t* query_start_loc;
  const int32_t* context_lens;
  const int32_t* query_lens;
  const int32_t* seq_lens;
  const int32_t* block_table;
  int64_t block_table_rows;
  int64_t block_table_cols;
  int64_t block_table_row_stride;
  int64_t num_cache_blocks;
  int32_t block_size;
} mlaprefill_batch;
#define MLAPREFILL_BATCH_INIT \
  { sizeof(mlaprefill_batch), 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, -1, 0 }

typedef struct mlaprefill_device_properties {
  size_t struct_size;
  int32_t num_processors;
  int32_t query_tile_tokens;
  int32_t key_tile_tokens;
  int32_t row_alignment_rows;
} mlaprefill_device_properties;
#define MLAPREFILL_DEVICE_PROPERTIES_INIT \
  { sizeof(mlaprefill_device_properties), 1, 0, 64, 1 }

typedef struct mlaprefill_plan_bounds {
  size_t struct_size;
  int64_t max_requests;
  int64_t max_query_rows;
  int64_t max_new_tokens_pass_rows;
  int64_t max_passes;
} mlaprefill_plan_bounds;
#define MLAPREFILL_PLAN_BOUNDS_INIT \
  { sizeof(mlaprefill_plan_bounds), 0, 0, 0, 0 }

typedef struct mlaprefill_plan_options {
  size_t struct_size;
  int32_t mode;
  int32_t working_dtype;
  int64_t workspace_tokens;
  int32_t strict;
  int32_t invariant;
  int64_t max_requests;
  int64_t max_query_tokens;
  int64_t max_context_tokens_per_request;
  const mlaprefill_plan_bounds* bounds; /* NULL: unbounded */
} mlaprefill_plan_options;
#define MLAPREFILL_PLAN_OPTIONS_INIT                                                                         \
  {                                                                                                          \
    sizeof(mlaprefill_plan_options), MLAPREFILL_MODE_BRIDGE, MLAPREFILL_BF16, 65536, 0, 0, INT64_C(1) << 24, \
        (INT64_C(1) << 31) - 1, (INT64_C(1) << 31) - 1, NULL                                                 \
  }

typedef struct mlaprefill_plan mlaprefill_plan;

typedef struct mlaprefill_plan_info {
  size_t struct_size;
  uint64_t fingerprint;
  int64_t num_requests;
  int64_t num_query_rows;
  int64_t num_passes;
  int64_t num_spans;
  int64_t num_tiles;
  int64_t expanded_rows;
  int64_t visible_pairs;
  double attention_flop;
  double expand_flop;
  int64_t metadata_offset_bytes;
  int64_t metadata_bytes;
  int64_t latent_offset_bytes;
  int64_t expanded_offset_bytes;
  int64_t state_out_offset_bytes;
  int64_t state_max_offset_bytes;
  int64_t state_sum_offset_bytes;
  int64_t workspace_bytes; /* what a composed layer run needs */
  int32_t verdict;
} mlaprefill_plan_info;
#define MLAPREFILL_PLAN_INFO_INIT \
  { sizeof(mlaprefill_plan_info), 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct mlaprefill_pass {
  size_t struct_size;
  int64_t rows;
  int64_t span_begin;
  int64_t span_end;
  int64_t tile_begin;
  int64_t tile_end;
  int32_t kind;
  int32_t all_rows_active;
} mlaprefill_pass;
#define MLAPREFILL_PASS_INIT \
  { sizeof(mlaprefill_pass), 0, 0, 0, 0, 0, 0, 0 }

typedef struct mlaprefill_span {
  size_t struct_size;
  int64_t key_begin;
  int64_t key_end;
  int64_t row_begin;
  int32_t request;
  int32_t continuation;
  int32_t first;
  int32_t last;
} mlaprefill_span;
#define MLAPREFILL_SPAN_INIT \
  { sizeof(mlaprefill_span), 0, 0, 0, 0, 0, 0, 0 }

typedef struct mlaprefill_tile {
  size_t struct_size;
  int64_t span;
  int64_t query_begin;
  int32_t query_rows;
  int32_t key_tiles;
} mlaprefill_tile;
#define MLAPREFILL_TILE_INIT \
  { sizeof(mlaprefill_tile), 0, 0, 0, 0 }

MLAPREFILL_API mlaprefill_status mlaprefill_parse_plan_mode(const char* name, int32_t* mode,
                                                            mlaprefill_error* error);
/* options and device may be NULL: the defaults. On failure *plan is NULL. */
MLAPREFILL_API mlaprefill_status mlaprefill_plan_create(const mlaprefill_dims* dims,
                                                        const mlaprefill_batch* batch,
                                                        const mlaprefill_plan_options* options,
                                                        const mlaprefill_device_properties* device,
                                                        mlaprefill_plan** plan, mlaprefill_error* error);
MLAPREFILL_API void mlaprefill_plan_destroy(mlaprefill_plan* plan);
MLAPREFILL_API mlaprefill_status mlaprefill_plan_get_info(const mlaprefill_plan* plan,
                                                          mlaprefill_plan_info* info,
                                                          mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_plan_get_pass(const mlaprefill_plan* plan, int64_t index,
                                                          mlaprefill_pass* pass, mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_plan_get_span(const mlaprefill_plan* plan, int64_t index,
                                                          mlaprefill_span* span, mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_plan_get_tile(const mlaprefill_plan* plan, int64_t index,
                                                          mlaprefill_tile* tile, mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_plan_to_text(const mlaprefill_plan* plan, char* text,
                                                         size_t capacity, size_t* length_bytes,
                                                         mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_plan_to_json(const mlaprefill_plan* plan, char* json,
                                                         size_t capacity, size_t* length_bytes,
                                                         mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_workspace_upper_bound_bytes(
    const mlaprefill_dims* dims, const mlaprefill_plan_options* options,
    const mlaprefill_device_properties* device, const mlaprefill_plan_bounds* bounds, int64_t* size_bytes,
    mlaprefill_error* error);

#ifdef __cplusplus
}
#endif

#endif /* MLAPREFILL_C_API_PLAN_H_ */
