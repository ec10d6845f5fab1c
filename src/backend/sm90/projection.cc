#include "backend/sm90/projection.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "core/error.h"

namespace mlaprefill::sm90 {
namespace {

constexpr int kMaxCandidates = 8;  ///< the heuristic never returns more
constexpr uint32_t kPointerAlignmentBytes = 16;

Status cublas_status(cublasStatus_t code, const char* where) {
  if (code == CUBLAS_STATUS_SUCCESS) return {};
  return error(StatusCode::kDeviceError, "{}: cuBLASLt must accept it, got status {}", where,
               static_cast<int>(code));
}

Result<const CublasLt*> load_once() {
  static CublasLt lt;
  void* library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return error(StatusCode::kUnavailable, "{}", reason == nullptr ? "libcublasLt.so.13: not found" : reason);
  }
  const char* missing = nullptr;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  };
  resolve(lt.create, "cublasLtCreate");
  resolve(lt.destroy, "cublasLtDestroy");
  resolve(lt.matmul, "cublasLtMatmul");
  resolve(lt.get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  resolve(lt.check, "cublasLtMatmulAlgoCheck");
  resolve(lt.get_config, "cublasLtMatmulAlgoConfigGetAttribute");
  resolve(lt.init_operation, "cublasLtMatmulDescInit_internal");
  resolve(lt.set_operation, "cublasLtMatmulDescSetAttribute");
  resolve(lt.init_layout, "cublasLtMatrixLayoutInit_internal");
  resolve(lt.init_preference, "cublasLtMatmulPreferenceInit_internal");
  resolve(lt.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  if (missing != nullptr) {
    return error(StatusCode::kUnavailable, "libcublasLt.so.13: must export {}, got none", missing);
  }
  return static_cast<const CublasLt*>(&lt);
}

}  // namespace

Result<const CublasLt*> CublasLt::load() {
  static const Result<const CublasLt*> loaded = load_once();
  return loaded;
}

Result<Projection> Projection::create(const CublasLt& library, cublasLtHandle_t handle,
                                      const ProjectionShape& shape, const void* weight) {
  Projection projection;
  projection.library_ = &library;
  projection.handle_ = handle;
  projection.shape_ = shape;
  projection.weight_ = weight;
  const CublasLt& lt = *projection.library_;
  MLAPREFILL_RETURN_IF_ERROR(
      cublas_status(lt.init_operation(&projection.operation_, sizeof(projection.operation_),
                                      CUBLAS_COMPUTE_32F, CUDA_R_32F),
                    "projection"));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  MLAPREFILL_RETURN_IF_ERROR(cublas_status(
      lt.set_operation(&projection.operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "projection"));
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    auto algorithm = projection.choose(largest_rows(bucket));
    if (!algorithm.ok()) return algorithm.status();
    projection.algorithms_[static_cast<size_t>(bucket)] = algorithm.value();
  }
  constexpr int64_t kPinnedRows = 32768;
  projection.pinned_ = projection.algorithms_[static_cast<size_t>(bucket_of(kPinnedRows))];
  for (const int64_t rows : {int64_t{1}, int64_t{100}, largest_rows(kBuckets - 1)}) {
    if (!projection.takes(projection.pinned_, rows)) {
      return error(StatusCode::kUnsupported,
                   "projection: one algorithm must serve every row count, got none");
    }
  }
  return projection;
}

int Projection::bucket_of(int64_t rows) {
  const auto units = static_cast<uint64_t>((rows - 1) / kSmallestBucketRows);
  return std::min(static_cast<int>(std::bit_width(units)), kBuckets - 1);
}

Projection::Wanted Projection::wanted(int64_t outputs, int64_t rows) {
  constexpr int64_t kWideOutputs = 16384;
  if (outputs >= kWideOutputs) return rows <= 4096 ? Wanted{184, 5, 2} : Wanted{201, 5, 2};
  if (rows <= 1024) return {17, 3, 0};
  if (rows <= 4096) return {24, 5, 7};
  return rows <= 16384 ? Wanted{20, 3, 1} : Wanted{29, 3, 1};
}

// cuBLASLt is column-major: out^T [outputs, rows] = weight^T^T latents^T.
Status Projection::make_layouts(int64_t rows, Layouts& layouts) const {
  const cudaDataType type = shape_.dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
  const auto init = [&](cublasLtMatrixLayoutOpaque_t& layout, int64_t height, int64_t width, int64_t stride) {
    return cublas_status(library_->init_layout(&layout, sizeof(layout), type, static_cast<uint64_t>(height),
                                               static_cast<uint64_t>(width), stride),
                         "projection");
  };
  MLAPREFILL_RETURN_IF_ERROR(init(layouts.weight, shape_.inputs, shape_.outputs, shape_.weight_row_stride));
  MLAPREFILL_RETURN_IF_ERROR(init(layouts.latents, shape_.inputs, rows, shape_.latent_row_stride));
  return init(layouts.out, shape_.outputs, rows, shape_.outputs);
}

bool Projection::has_config(const cublasLtMatmulAlgo_t& algorithm, const Wanted& wanted) const {
  uint32_t tile = 0;
  uint32_t custom = 0;
  uint16_t cluster = 0;
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    return library_->get_config(&algorithm, attribute, &value, sizeof(value), nullptr) ==
           CUBLAS_STATUS_SUCCESS;
  };
  return read(CUBLASLT_ALGO_CONFIG_TILE_ID, tile) && read(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, custom) &&
         read(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster) && tile == wanted.tile &&
         custom == wanted.custom && cluster == wanted.cluster;
}

bool Projection::takes(const cublasLtMatmulAlgo_t& algorithm, int64_t rows) const {
  Layouts layouts;
  if (!make_layouts(rows, layouts).ok()) return false;
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t code =
      library_->check(handle_, const_cast<cublasLtMatmulDescOpaque_t*>(&operation_), &layouts.weight,
                      &layouts.latents, &layouts.out, &layouts.out, &algorithm, &result);
  return code == CUBLAS_STATUS_SUCCESS;
}

Result<cublasLtMatmulAlgo_t> Projection::choose(int64_t rows) const {
  Layouts layouts;
  MLAPREFILL_RETURN_IF_ERROR(make_layouts(rows, layouts));
  cublasLtMatmulPreferenceOpaque_t preference{};
  MLAPREFILL_RETURN_IF_ERROR(
      cublas_status(library_->init_preference(&preference, sizeof(preference)), "projection"));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    MLAPREFILL_RETURN_IF_ERROR(
        cublas_status(library_->set_preference(&preference, attribute, &kPointerAlignmentBytes,
                                               sizeof(kPointerAlignmentBytes)),
                      "projection"));
  }
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> candidates{};
  int count = 0;
  MLAPREFILL_RETURN_IF_ERROR(
      cublas_status(library_->get_heuristic(handle_, const_cast<cublasLtMatmulDescOpaque_t*>(&operation_),
                                            &layouts.weight, &layouts.latents, &layouts.out, &layouts.out,
                                            &preference, kMaxCandidates, candidates.data(), &count),
                    "projection"));
  const auto end = candidates.begin() + count;
  // An algorithm of the range must take its smallest and its odd row counts too.
  const auto usable = [&](const cublasLtMatmulHeuristicResult_t& candidate) {
    return candidate.state == CUBLAS_STATUS_SUCCESS && takes(candidate.algo, rows / 2 + 1) &&
           takes(candidate.algo, rows);
  };
  const Wanted preferred = wanted(shape_.outputs, rows);
  auto chosen = std::find_if(candidates.begin(), end, [&](const cublasLtMatmulHeuristicResult_t& candidate) {
    return has_config(candidate.algo, preferred) && usable(candidate);
  });
  if (chosen == end) chosen = std::find_if(candidates.begin(), end, usable);
  if (chosen == end) {
    return error(StatusCode::kUnsupported,
                 "projection: cuBLASLt must offer an algorithm, got none for {} rows", rows);
  }
  return chosen->algo;
}

Status Projection::run(const cublasLtMatmulAlgo_t& algorithm, const void* latents, void* out, int64_t rows,
                       cudaStream_t stream) const {
  Layouts layouts;
  MLAPREFILL_RETURN_IF_ERROR(make_layouts(rows, layouts));
  const float one = 1.0f;
  const float zero = 0.0f;
  return cublas_status(library_->matmul(handle_, const_cast<cublasLtMatmulDescOpaque_t*>(&operation_), &one,
                                        weight_, &layouts.weight, latents, &layouts.latents, &zero, out,
                                        &layouts.out, out, &layouts.out, &algorithm, nullptr, 0, stream),
                       "projection");
}

Status Projection::run(const void* latents, void* out, int64_t rows, bool pinned, cudaStream_t stream) const {
  if (rows == 0) return {};
  return run(pinned ? pinned_ : algorithms_[static_cast<size_t>(bucket_of(rows))], latents, out, rows,
             stream);
}

Status Projection::load_code(const void* latents, void* out, cudaStream_t stream) const {
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms_) {
    if (takes(algorithm, 1)) MLAPREFILL_RETURN_IF_ERROR(run(algorithm, latents, out, 1, stream));
  }
  return {};
}

}  // namespace mlaprefill::sm90
