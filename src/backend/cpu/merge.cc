#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/parallel.h"
#include "backend/latent_cache.h"
#include "core/tensor_access.h"

namespace mlaprefill::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kColumns = 256;  // columns accumulated at once, on the stack
constexpr int64_t kElementsPerTask = 65536;

// An LSE as natural logarithm; a foreign +inf means "no key" and reads as -inf.
double natural_lse(const ConstLseView& lse, int64_t token, int64_t head) {
  const double value = lse.data[head * lse.head_stride + token * lse.token_stride];
  if (value == kInfinity) return -kInfinity;
  return lse.base == LseBase::kLog2 ? value * std::numbers::ln2 : value;
}

// Weights of the partials of one row, normalised to sum 1, and the merged LSE. A partial without keys gets
// no weight at all: it is skipped, so what its output holds cannot matter. NaN is kept.
double normalised_weights(const MergeArgs& args, int64_t token, int64_t head, std::vector<double>& weights) {
  double max = -kInfinity;
  for (size_t i = 0; i < args.partials.size(); ++i) {
    weights[i] = natural_lse(args.partials[i].lse, token, head);
    if (weights[i] > max) max = weights[i];
  }
  double sum = 0.0;
  for (double& weight : weights) {
    weight = weight == -kInfinity ? -1.0 : std::exp(weight - max);
    if (weight != -1.0) sum += weight;
  }
  if (sum == 0.0) return -kInfinity;
  for (double& weight : weights) {
    if (weight != -1.0) weight /= sum;
  }
  return max + std::log(sum);
}

// Row-sized scratch of one task.
struct Scratch {
  explicit Scratch(size_t partials) : weights(partials) {}

  std::vector<double> weights;
  std::array<float, kColumns> loaded;
  std::array<float, kColumns> merged;
};

void merge_columns(const MergeArgs& args, int64_t token, int64_t head, int64_t begin, int64_t count,
                   Scratch& scratch) {
  std::fill_n(scratch.merged.data(), count, 0.0f);
  for (size_t i = 0; i < args.partials.size(); ++i) {
    if (scratch.weights[i] == -1.0) continue;
    const auto weight = static_cast<float>(scratch.weights[i]);
    const ConstTensor& source = args.partials[i].out;
    load_floats(element_address(source, token, head, begin), source.dtype, count, scratch.loaded.data());
    for (int64_t d = 0; d < count; ++d) {
      scratch.merged[static_cast<size_t>(d)] += weight * scratch.loaded[static_cast<size_t>(d)];
    }
  }
  store_floats(element_address(args.out, token, head, begin), args.out.dtype, count, scratch.merged.data());
}

void merge_row(const MergeArgs& args, int64_t token, int64_t head, Scratch& scratch) {
  const double lse = normalised_weights(args, token, head, scratch.weights);
  const int64_t dim = args.out.shape[2];
  for (int64_t begin = 0; begin < dim; begin += kColumns) {
    merge_columns(args, token, head, begin, std::min(kColumns, dim - begin), scratch);
  }
  if (args.lse.data == nullptr) return;
  args.lse.data[head * args.lse.head_stride + token * args.lse.token_stride] =
      static_cast<float>(args.lse.base == LseBase::kLog2 ? lse * std::numbers::log2e : lse);
}

}  // namespace

void merge(const MergeArgs& args) {
  const int64_t tokens = args.out.shape[0];
  const int64_t heads = args.out.shape[1];
  const int64_t elements_per_row =
      std::max<int64_t>(args.out.shape[2] * static_cast<int64_t>(args.partials.size()), 1);
  const int64_t grain = std::max<int64_t>(kElementsPerTask / elements_per_row, 1);
  parallel_ranges(tokens * heads, grain, [&args, heads](int64_t begin, int64_t end) {
    Scratch scratch(args.partials.size());
    for (int64_t row = begin; row < end; ++row) merge_row(args, row / heads, row % heads, scratch);
  });
}

}  // namespace mlaprefill::cpu
