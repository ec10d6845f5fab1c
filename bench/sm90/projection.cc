// The up-projection GEMM: the library's algorithm, the pinned one of invariant mode and cuBLASLt's default,
// interleaved, each timed inside a graph behind a write that flushes L2. Prints one JSON object.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "backend/sm90/projection.h"
#include "require.h"
#include "verify/host_tensor.h"

namespace mlaprefill::sm90 {
namespace {

using bench::require;
using bench::stop;

constexpr int kRounds = 21;
constexpr int64_t kLatentDim = 512;
constexpr int64_t kLatentStride = 576;
constexpr size_t kFlushBytes = size_t{256} << 20;

void* random_device(int64_t elements, float scale) {
  verify::HostTensor host(DType::kBF16, {std::min<int64_t>(elements, 1 << 20)});
  verify::Random random(1);
  verify::fill_random(host, random, scale);
  const auto block_bytes = static_cast<size_t>(host.view().shape[0]) * 2;
  void* data = nullptr;
  require(cudaMalloc(&data, static_cast<size_t>(elements) * 2));
  for (size_t begin = 0; begin < static_cast<size_t>(elements) * 2; begin += block_bytes) {
    const size_t count = std::min(block_bytes, static_cast<size_t>(elements) * 2 - begin);
    require(cudaMemcpy(static_cast<char*>(data) + begin, host.view().data, count, cudaMemcpyHostToDevice));
  }
  return data;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class DefaultAlgorithm {
 public:
  DefaultAlgorithm(const CublasLt& lt, cublasLtHandle_t handle, int64_t outputs, const void* weight)
      : lt_(lt), handle_(handle), outputs_(outputs), weight_(weight) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    lt.init_operation(&operation_, sizeof(operation_), CUBLAS_COMPUTE_32F, CUDA_R_32F);
    lt.set_operation(&operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
  }
  void run(const void* latents, void* out, int64_t rows, cudaStream_t stream) {
    cublasLtMatrixLayoutOpaque_t weight{}, latent{}, result{};
    const auto outputs = static_cast<uint64_t>(outputs_);
    const auto columns = static_cast<uint64_t>(rows);
    lt_.init_layout(&weight, sizeof(weight), CUDA_R_16BF, kLatentDim, outputs, kLatentDim);
    lt_.init_layout(&latent, sizeof(latent), CUDA_R_16BF, kLatentDim, columns, kLatentStride);
    lt_.init_layout(&result, sizeof(result), CUDA_R_16BF, outputs, columns, outputs_);
    const float one = 1.0f;
    const float zero = 0.0f;
    if (lt_.matmul(handle_, &operation_, &one, weight_, &weight, latents, &latent, &zero, out, &result, out,
                   &result, nullptr, nullptr, 0, stream) != CUBLAS_STATUS_SUCCESS) {
      stop("cuBLASLt's default algorithm must run");
    }
  }

 private:
  const CublasLt& lt_;
  cublasLtHandle_t handle_;
  int64_t outputs_;
  const void* weight_;
  cublasLtMatmulDescOpaque_t operation_{};
};

nlohmann::json measure(const CublasLt& lt, cublasLtHandle_t handle, int64_t heads, int64_t rows,
                       cudaStream_t stream, void* flush) {
  const int64_t outputs = heads * 256;
  void* weight = random_device(outputs * kLatentDim, 0.05f);
  void* latents = random_device(rows * kLatentStride, 1.0f);
  void* out = nullptr;
  require(cudaMalloc(&out, static_cast<size_t>(rows * outputs) * 2));
  const auto projection =
      Projection::create(lt, handle, {outputs, kLatentDim, kLatentDim, kLatentStride, DType::kBF16}, weight);
  require(projection.status());
  DefaultAlgorithm fallback(lt, handle, outputs, weight);

  constexpr std::array<const char*, 3> kNames{"chosen", "pinned", "default"};
  std::array<cudaGraphExec_t, 3> graphs{};
  for (size_t i = 0; i < kNames.size(); ++i) {
    cudaGraph_t graph = nullptr;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (i < 2) require(projection->run(latents, out, rows, i == 1, stream));
    if (i == 2) fallback.run(latents, out, rows, stream);
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&graphs[i], graph, 0));
    require(cudaGraphDestroy(graph));
  }
  std::array<std::vector<double>, 3> times;
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  for (int round = -2; round < kRounds; ++round) {
    for (size_t i = 0; i < kNames.size(); ++i) {
      require(cudaMemsetAsync(flush, round & 0xFF, kFlushBytes, stream));
      require(cudaEventRecord(begin, stream));
      require(cudaGraphLaunch(graphs[i], stream));
      require(cudaEventRecord(end, stream));
      require(cudaEventSynchronize(end));
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, begin, end));
      if (round >= 0) times[i].push_back(milliseconds);
    }
  }
  const double flop = 2.0 * static_cast<double>(rows) * static_cast<double>(outputs) * kLatentDim;
  nlohmann::json result{{"heads", heads}, {"rows", rows}};
  for (size_t i = 0; i < kNames.size(); ++i) {
    const double milliseconds = median(times[i]);
    result[kNames[i]] = {{"median_us", milliseconds * 1e3}, {"tflops", flop / milliseconds * 1e-9}};
    require(cudaGraphExecDestroy(graphs[i]));
  }
  for (void* data : {weight, latents, out}) require(cudaFree(data));
  return result;
}

}  // namespace
}  // namespace mlaprefill::sm90

int main() {
  using namespace mlaprefill;
  using namespace mlaprefill::sm90;
  const auto lt = CublasLt::load();
  if (!lt.ok()) stop(lt.status().message());
  cublasLtHandle_t handle = nullptr;
  if (lt.value()->create(&handle) != CUBLAS_STATUS_SUCCESS) stop("cuBLASLt must give a handle");
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  void* flush = nullptr;
  require(cudaMalloc(&flush, kFlushBytes));
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0));
  nlohmann::json report{
      {"schema", "mlaprefill.projection/1"}, {"device", properties.name}, {"rounds", kRounds}};
  for (const int64_t heads : {128, 16}) {
    for (const int64_t rows : {512, 2048, 8192, 32768, 65536}) {
      report["results"].push_back(measure(*lt.value(), handle, heads, rows, stream, flush));
    }
  }
  fmt::print("{}\n", report.dump(1));
}
