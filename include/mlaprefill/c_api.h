/* The C ABI of mlaprefill, with the reach of the C++ API. Plain C99. Built as libmlaprefill_c.so.
 *
 * Status: every function that can fail returns a code (MLAPREFILL_OK is 0) and, when `error` is given, writes
 * code and message to the caller's own struct, so threads never share one. No exception leaves the library.
 *
 * Structs that start with struct_size may grow at their end in later versions: initialise them with their
 * _INIT macro. The library gives fields a shorter struct lacks their default, and refuses a longer one whose
 * unknown fields are not zero. The other structs never change.
 *
 * Strings are written as snprintf does: at most `capacity` bytes with a final zero, the full length to
 * *length_bytes (which may be NULL), so a first call with capacity 0 asks for the size.
 *
 * Meanings, shapes and limits of every field are those of the C++ header named at each section. Handles are
 * immutable: any number of threads may use one at once; destroy is for the last user and accepts NULL.
 */
#ifndef MLAPREFILL_C_API_H_
#define MLAPREFILL_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "mlaprefill/c_api_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- backend.h ---- */

typedef struct mlaprefill_backend mlaprefill_backend;
typedef struct mlaprefill_weights mlaprefill_weights;

typedef struct mlaprefill_workspace {
  void* data;
  int64_t size_bytes;
} mlaprefill_workspace;

typedef struct mlaprefill_backend_info {
  size_t struct_size;
  int32_t available;
  char name[60];
} mlaprefill_backend_info;
#define MLAPREFILL_BACKEND_INFO_INIT          \
  {                                           \
    sizeof(mlaprefill_backend_info), 0, { 0 } \
  }

typedef struct mlaprefill_backend_options {
  size_t struct_size;
  const char* isa; /* NULL: "auto" */
  int32_t num_threads;
  int32_t device;
} mlaprefill_backend_options;
#define MLAPREFILL_BACKEND_OPTIONS_INIT \
  { sizeof(mlaprefill_backend_options), NULL, 0, 0 }

typedef struct mlaprefill_support_query {
  size_t struct_size;
  const mlaprefill_dims* dims;
  int32_t query_dtype;
  int32_t output_dtype;
  int32_t weight_dtype;
  int32_t cache_dtype;
  int32_t needs_context;
} mlaprefill_support_query;
#define MLAPREFILL_SUPPORT_QUERY_INIT                                                          \
  {                                                                                            \
    sizeof(mlaprefill_support_query), NULL, MLAPREFILL_BF16, MLAPREFILL_BF16, MLAPREFILL_BF16, \
        MLAPREFILL_BF16, 1                                                                     \
  }

#define MLAPREFILL_NOT_CAUSAL (INT64_MAX / 4)

typedef struct mlaprefill_attention_span {
  int64_t q_row;
  int64_t q_len;
  int64_t k_row;
  int64_t k_len;
  int64_t causal_offset;
  int32_t resume;
  int32_t store_state;
} mlaprefill_attention_span;

typedef struct mlaprefill_attention_args {
  size_t struct_size;
  mlaprefill_tensor q;
  mlaprefill_tensor k;
  mlaprefill_tensor k_rope;
  mlaprefill_tensor v;
  const mlaprefill_attention_span* spans;
  int64_t num_spans;
  double softmax_scale;
  mlaprefill_tensor out;
  mlaprefill_lse lse;
  float* state_out;
  float* state_max;
  float* state_sum;
  const mlaprefill_plan* plan;
  int64_t pass;
  mlaprefill_workspace workspace;
  int32_t invariant;
} mlaprefill_attention_args;
#define MLAPREFILL_ATTENTION_ARGS_INIT                                                        \
  {                                                                                           \
    sizeof(mlaprefill_attention_args), MLAPREFILL_TENSOR_INIT, MLAPREFILL_TENSOR_INIT,        \
        MLAPREFILL_TENSOR_INIT, MLAPREFILL_TENSOR_INIT, NULL, 0, 0.0, MLAPREFILL_TENSOR_INIT, \
        MLAPREFILL_LSE_INIT, NULL, NULL, NULL, NULL, 0, {NULL, 0}, 0                          \
  }

typedef struct mlaprefill_partial {
  mlaprefill_tensor out;
  mlaprefill_lse lse;
} mlaprefill_partial;

typedef struct mlaprefill_kv_cache {
  mlaprefill_tensor data;
  float scale;
  int32_t reserved; /* padding */
} mlaprefill_kv_cache;
#define MLAPREFILL_KV_CACHE_INIT \
  { MLAPREFILL_TENSOR_INIT, 1.0f, 0 }

typedef struct mlaprefill_expand_args {
  size_t struct_size;
  const mlaprefill_plan* plan;
  int64_t pass;
  mlaprefill_workspace workspace;
  const mlaprefill_weights* weights;
  mlaprefill_tensor kv_latent;
  mlaprefill_tensor k_rope;
  mlaprefill_kv_cache cache;
  mlaprefill_tensor latent;
  mlaprefill_tensor expanded;
} mlaprefill_expand_args;
#define MLAPREFILL_EXPAND_ARGS_INIT                                                                      \
  {                                                                                                      \
    sizeof(mlaprefill_expand_args), NULL, 0, {NULL, 0}, NULL, MLAPREFILL_TENSOR_INIT,                    \
        MLAPREFILL_TENSOR_INIT, MLAPREFILL_KV_CACHE_INIT, MLAPREFILL_TENSOR_INIT, MLAPREFILL_TENSOR_INIT \
  }

/* Backends this build knows, available or not: indices 0 .. count - 1. */
MLAPREFILL_API int64_t mlaprefill_num_backends(void);
/* `reasons`: why it is not available, one a line. */
MLAPREFILL_API mlaprefill_status mlaprefill_get_backend_info(int64_t index, mlaprefill_backend_info* info,
                                                             char* reasons, size_t capacity,
                                                             size_t* length_bytes, mlaprefill_error* error);
/* options may be NULL. On failure *backend is NULL. */
MLAPREFILL_API mlaprefill_status mlaprefill_backend_open(const char* name,
                                                         const mlaprefill_backend_options* options,
                                                         mlaprefill_backend** backend,
                                                         mlaprefill_error* error);
/* Weights and layers keep what they need of their backend alive. */
MLAPREFILL_API void mlaprefill_backend_destroy(mlaprefill_backend* backend);
MLAPREFILL_API mlaprefill_status mlaprefill_backend_description(const mlaprefill_backend* backend, char* text,
                                                                size_t capacity, size_t* length_bytes,
                                                                mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_backend_device_properties(const mlaprefill_backend* backend,
                                                                      mlaprefill_device_properties* device,
                                                                      mlaprefill_error* error);
/* *supported: 1, or 0 with the reasons, one a line. */
MLAPREFILL_API mlaprefill_status mlaprefill_backend_supports(const mlaprefill_backend* backend,
                                                             const mlaprefill_support_query* query,
                                                             int32_t* supported, char* reasons,
                                                             size_t capacity, size_t* length_bytes,
                                                             mlaprefill_error* error);

/* Memory of the kind the backend's tensors live in. */
MLAPREFILL_API mlaprefill_status mlaprefill_allocate(const mlaprefill_backend* backend, int64_t size_bytes,
                                                     void** data, mlaprefill_error* error);
MLAPREFILL_API void mlaprefill_release(const mlaprefill_backend* backend, void* data);
MLAPREFILL_API mlaprefill_status mlaprefill_copy_from_host(const mlaprefill_backend* backend, void* to,
                                                           const void* from, int64_t size_bytes, void* stream,
                                                           mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_copy_to_host(const mlaprefill_backend* backend, void* to,
                                                         const void* from, int64_t size_bytes, void* stream,
                                                         mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_synchronize(const mlaprefill_backend* backend, void* stream,
                                                        mlaprefill_error* error);

/* Work. `stream` is a cudaStream_t, ignored by host backends. */
MLAPREFILL_API mlaprefill_status mlaprefill_upload(const mlaprefill_backend* backend,
                                                   const mlaprefill_plan* plan,
                                                   mlaprefill_workspace workspace, void* stream,
                                                   mlaprefill_error* error);
/* Writes num_requests spans. */
MLAPREFILL_API mlaprefill_status mlaprefill_make_attention_spans(
    const int32_t* cu_seqlens_q, const int32_t* cu_seqlens_k, int64_t num_requests, int32_t causal,
    int64_t q_rows, int64_t k_rows, mlaprefill_attention_span* spans, mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_attention(const mlaprefill_backend* backend,
                                                      const mlaprefill_attention_args* args, void* stream,
                                                      mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_attention_workspace_bytes(const mlaprefill_backend* backend,
                                                                      const mlaprefill_attention_args* args,
                                                                      int64_t* size_bytes,
                                                                      mlaprefill_error* error);
/* `lse` may be NULL. */
MLAPREFILL_API mlaprefill_status mlaprefill_merge(const mlaprefill_backend* backend,
                                                  const mlaprefill_partial* partials, int64_t num_partials,
                                                  const mlaprefill_tensor* out, const mlaprefill_lse* lse,
                                                  void* stream, mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_append(
    const mlaprefill_backend* backend, const mlaprefill_tensor* kv_latent, const mlaprefill_tensor* k_rope,
    const int64_t* slot_mapping, const mlaprefill_kv_cache* cache, void* stream, mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_weights_create(const mlaprefill_backend* backend,
                                                           const mlaprefill_dims* dims,
                                                           const mlaprefill_tensor* kv_b_proj,
                                                           mlaprefill_weights** weights,
                                                           mlaprefill_error* error);
MLAPREFILL_API void mlaprefill_weights_destroy(mlaprefill_weights* weights);
MLAPREFILL_API mlaprefill_status mlaprefill_expand(const mlaprefill_backend* backend,
                                                   const mlaprefill_expand_args* args, void* stream,
                                                   mlaprefill_error* error);

/* ---- layer.h ---- */

typedef struct mlaprefill_layer mlaprefill_layer;
enum { MLAPREFILL_PATH_AUTO = 0, MLAPREFILL_PATH_FUSED = 1, MLAPREFILL_PATH_COMPOSED = 2 };

typedef struct mlaprefill_layer_args {
  size_t struct_size;
  mlaprefill_tensor q;
  mlaprefill_tensor kv_latent;
  mlaprefill_tensor k_rope;
  mlaprefill_kv_cache cache;
  mlaprefill_tensor out;
  mlaprefill_lse lse;
  mlaprefill_workspace workspace;
  int32_t path;
} mlaprefill_layer_args;
#define MLAPREFILL_LAYER_ARGS_INIT                                                                         \
  {                                                                                                        \
    sizeof(mlaprefill_layer_args), MLAPREFILL_TENSOR_INIT, MLAPREFILL_TENSOR_INIT, MLAPREFILL_TENSOR_INIT, \
        MLAPREFILL_KV_CACHE_INIT, MLAPREFILL_TENSOR_INIT, MLAPREFILL_LSE_INIT, {NULL, 0},                  \
        MLAPREFILL_PATH_AUTO                                                                               \
  }

MLAPREFILL_API mlaprefill_status mlaprefill_layer_create(const mlaprefill_backend* backend,
                                                         const mlaprefill_dims* dims,
                                                         const mlaprefill_tensor* kv_b_proj,
                                                         mlaprefill_layer** layer, mlaprefill_error* error);
MLAPREFILL_API void mlaprefill_layer_destroy(mlaprefill_layer* layer);
/* The path MLAPREFILL_PATH_AUTO takes. */
MLAPREFILL_API mlaprefill_status mlaprefill_layer_get_path(const mlaprefill_layer* layer, int32_t* path,
                                                           mlaprefill_error* error);
MLAPREFILL_API mlaprefill_status mlaprefill_layer_run(const mlaprefill_layer* layer,
                                                      const mlaprefill_plan* plan,
                                                      const mlaprefill_layer_args* args, void* stream,
                                                      mlaprefill_error* error);

#ifdef __cplusplus
}
#endif

#endif /* MLAPREFILL_C_API_H_ */
