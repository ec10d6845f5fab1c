/* A C program that plans a ragged batch, runs one small MLA layer on the CPU and prints what it did. */
#include <mlaprefill/c_api.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 2, RANK = 64, NOPE = 32, ROPE = 16, VALUE = 32, TOKENS = 8 };

static float q[TOKENS * HEADS * (NOPE + ROPE)];
static float kv_latent[TOKENS * RANK];
static float k_rope[TOKENS * ROPE];
static float kv_b_proj[HEADS * (NOPE + VALUE) * RANK];
static float out[TOKENS * HEADS * VALUE];
static float lse[HEADS * TOKENS];

static void check(mlaprefill_status status, const mlaprefill_error* error) {
  if (status == MLAPREFILL_OK) return;
  fprintf(stderr, "%s: %s\n", mlaprefill_status_name(status), error->message);
  exit(1);
}

static void fill(float* values, size_t count, float value) {
  for (size_t i = 0; i < count; ++i) values[i] = value;
}

static mlaprefill_tensor view2(void* data, int64_t rows, int64_t cols) {
  const int64_t shape[2] = {rows, cols};
  return mlaprefill_contiguous(data, MLAPREFILL_F32, 2, shape);
}

static mlaprefill_tensor view3(void* data, int64_t rows, int64_t heads, int64_t dim) {
  const int64_t shape[3] = {rows, heads, dim};
  return mlaprefill_contiguous(data, MLAPREFILL_F32, 3, shape);
}

int main(void) {
  mlaprefill_error error = MLAPREFILL_ERROR_INIT;
  mlaprefill_dims dims = MLAPREFILL_DIMS_INIT;
  dims.num_heads = HEADS;
  dims.kv_lora_rank = RANK;
  dims.qk_nope_head_dim = NOPE;
  dims.qk_rope_head_dim = ROPE;
  dims.v_head_dim = VALUE;
  dims.softmax_scale = 0.144;

  /* Three requests with 5, 0 and 3 new tokens; nothing is cached. */
  const int32_t query_start_loc[4] = {0, 5, 5, TOKENS};
  const int32_t context_lens[3] = {0, 0, 0};
  mlaprefill_batch batch = MLAPREFILL_BATCH_INIT;
  batch.num_requests = 3;
  batch.query_start_loc = query_start_loc;
  batch.context_lens = context_lens;

  mlaprefill_backend* backend = NULL;
  check(mlaprefill_backend_open("cpu", NULL, &backend, &error), &error);
  mlaprefill_device_properties device = MLAPREFILL_DEVICE_PROPERTIES_INIT;
  check(mlaprefill_backend_device_properties(backend, &device, &error), &error);
  mlaprefill_plan_options options = MLAPREFILL_PLAN_OPTIONS_INIT;
  options.working_dtype = MLAPREFILL_F32;
  mlaprefill_plan* plan = NULL;
  check(mlaprefill_plan_create(&dims, &batch, &options, &device, &plan, &error), &error);
  mlaprefill_plan_info info = MLAPREFILL_PLAN_INFO_INIT;
  check(mlaprefill_plan_get_info(plan, &info, &error), &error);

  fill(q, sizeof(q) / sizeof(float), 0.1f);
  fill(kv_latent, sizeof(kv_latent) / sizeof(float), 0.2f);
  fill(k_rope, sizeof(k_rope) / sizeof(float), 0.3f);
  fill(kv_b_proj, sizeof(kv_b_proj) / sizeof(float), 0.01f);
  const mlaprefill_tensor weight = view2(kv_b_proj, HEADS * (NOPE + VALUE), RANK);
  mlaprefill_layer* layer = NULL;
  check(mlaprefill_layer_create(backend, &dims, &weight, &layer, &error), &error);

  mlaprefill_layer_args args = MLAPREFILL_LAYER_ARGS_INIT;
  args.q = view3(q, TOKENS, HEADS, NOPE + ROPE);
  args.kv_latent = view2(kv_latent, TOKENS, RANK);
  args.k_rope = view2(k_rope, TOKENS, ROPE);
  args.out = view3(out, TOKENS, HEADS, VALUE);
  args.lse.data = lse;
  args.lse.head_stride = TOKENS;
  check(mlaprefill_layer_run(layer, plan, &args, NULL, &error), &error);

  printf("mlaprefill %s: %d requests in %d passes, %d visible pairs\n", mlaprefill_version(),
         (int)info.num_requests, (int)info.num_passes, (int)info.visible_pairs);
  /* Every value is 64 * 0.2 * 0.01, and so is any weighted mean of them. */
  printf("out[0] = %.3f, lse[0] = %.3f\n", out[0], lse[0]);

  mlaprefill_layer_destroy(layer);
  mlaprefill_plan_destroy(plan);
  mlaprefill_backend_destroy(backend);
  return 0;
}
