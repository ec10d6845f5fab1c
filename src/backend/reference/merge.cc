#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "backend/reference/operations.h"
#include "core/float_formats.h"
#include "core/tensor_access.h"

namespace mlaprefill::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double natural_lse(const ConstLseView& lse, int64_t token, int64_t head) {
  const double value = lse.data[head * lse.head_stride + token * lse.token_stride];
  if (value == kInfinity) return -kInfinity;
  return lse.base == LseBase::kLog2 ? value * std::numbers::ln2 : value;
}

void merge_row(const MergeArgs& args, int64_t token, int64_t head) {
  const auto dim = static_cast<size_t>(args.out.shape[2]);
  std::vector<double> lse;
  double max = -kInfinity;
  for (const PartialAttention& partial : args.partials) {
    lse.push_back(natural_lse(partial.lse, token, head));
    if (lse.back() > max) max = lse.back();
  }
  double sum = 0.0;
  std::vector<double> out(dim, 0.0);
  for (size_t i = 0; i < lse.size(); ++i) {
    if (lse[i] == -kInfinity) continue;
    const double weight = std::exp(lse[i] - max);
    const ConstTensor& source = args.partials[i].out;
    const void* row = element_address(source, token, head);
    sum += weight;
    for (size_t d = 0; d < dim; ++d) {
      out[d] += weight * load_float(row, source.dtype, static_cast<int64_t>(d));
    }
  }
  void* target = element_address(args.out, token, head);
  for (size_t d = 0; d < dim; ++d) {
    const double value = sum == 0.0 ? 0.0 : out[d] / sum;
    store_float(target, args.out.dtype, static_cast<int64_t>(d), static_cast<float>(value));
  }
  if (args.lse.data == nullptr) return;
  double merged = sum == 0.0 ? -kInfinity : max + std::log(sum);
  if (args.lse.base == LseBase::kLog2) merged *= std::numbers::log2e;
  args.lse.data[head * args.lse.head_stride + token * args.lse.token_stride] = static_cast<float>(merged);
}

}  // namespace

void merge(const MergeArgs& args) {
  for (int64_t token = 0; token < args.out.shape[0]; ++token) {
    for (int64_t head = 0; head < args.out.shape[1]; ++head) merge_row(args, token, head);
  }
}

}  // namespace mlaprefill::reference
