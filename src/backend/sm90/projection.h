// The up-projection GEMM through cuBLASLt, which is loaded at run time.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "mlaprefill/status.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill::sm90 {

/// cuBLASLt's entry points, of the copy that is already loaded in this process if there is one.
struct CublasLt {
  /// Loaded at the first call and kept for the life of the process.
  static Result<const CublasLt*> load();

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_config = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) init_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
};

/// out[rows, outputs] = latents[rows, inputs] weight[outputs, inputs]^T with float32 accumulation.
struct ProjectionShape {
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t weight_row_stride = 0;
  int64_t latent_row_stride = 0;
  DType dtype = DType::kBF16;
};

/// One weight's GEMM with its algorithms chosen beforehand: for each range of row counts the one that was
/// measured fastest on an H200 where the heuristic offers it, else the heuristic's first. `pinned` ignores
/// the row count, so that a row's result does not depend on how many rows there are.
class Projection {
 public:
  static Result<Projection> create(const CublasLt& library, cublasLtHandle_t handle,
                                   const ProjectionShape& shape, const void* weight);

  Status run(const void* latents, void* out, int64_t rows, bool pinned, cudaStream_t stream) const;

  /// Runs every algorithm that takes one row once, so that later runs load no code, under capture neither.
  /// `out` has room for shape.outputs elements.
  Status load_code(const void* latents, void* out, cudaStream_t stream) const;

 private:
  static constexpr int kBuckets = 12;  ///< up to 64, 128, ... rows; the last holds all larger counts
  static constexpr int64_t kSmallestBucketRows = 64;

  struct Layouts {
    cublasLtMatrixLayoutOpaque_t weight, latents, out;
  };
  struct Wanted {
    uint32_t tile;
    uint32_t cluster;
    uint32_t custom;
  };

  Projection() = default;
  static int bucket_of(int64_t rows);
  static int64_t largest_rows(int bucket) { return kSmallestBucketRows << bucket; }
  static Wanted wanted(int64_t outputs, int64_t rows);
  Status make_layouts(int64_t rows, Layouts& layouts) const;
  Status run(const cublasLtMatmulAlgo_t& algorithm, const void* latents, void* out, int64_t rows,
             cudaStream_t stream) const;
  Result<cublasLtMatmulAlgo_t> choose(int64_t rows) const;
  bool has_config(const cublasLtMatmulAlgo_t& algorithm, const Wanted& wanted) const;
  /// Whether the algorithm takes this row count.
  bool takes(const cublasLtMatmulAlgo_t& algorithm, int64_t rows) const;

  const CublasLt* library_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  ProjectionShape shape_;
  const void* weight_ = nullptr;
  cublasLtMatmulDescOpaque_t operation_{};
  std::array<cublasLtMatmulAlgo_t, kBuckets> algorithms_{};
  cublasLtMatmulAlgo_t pinned_{};
};

}  // namespace mlaprefill::sm90
