#include "verify/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/tensor_access.h"

namespace mlaprefill::verify {
namespace {

// First byte that is not poison once the written rows are poisoned again, or -1.
int64_t first_touched(HostTensor tensor, int row_axis, std::span<const RowRange> written) {
  const Tensor view = tensor.view();
  const auto bytes = static_cast<size_t>(size_bytes(view.dtype));
  const auto forget = [&](int64_t i, int64_t j, int64_t k) {
    std::memset(element_address(view, i, j, k), 0xFF, bytes);
  };
  const int64_t depth = view.rank > 2 ? view.shape[2] : 1;
  for (const RowRange& rows : written) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (int64_t other = 0; other < view.shape[row_axis == 0 ? 1 : 0]; ++other) {
        for (int64_t k = 0; k < depth; ++k) {
          row_axis == 0 ? forget(row, other, k) : forget(other, row, k);
        }
      }
    }
  }
  const auto all = tensor.bytes();
  const auto touched =
      std::find_if(all.begin(), all.end(), [](std::byte byte) { return byte != std::byte{0xFF}; });
  return touched == all.end() ? -1 : touched - all.begin();
}

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin(), b.bytes().end());
}

}  // namespace

void Report::fail(std::string_view variant, std::string_view what) {
  if (worst.ok()) worst.failure = fmt::format("{}: {}", variant, what);
}

bool Report::accept(std::string_view variant, const Status& status) {
  if (status.ok()) return true;
  if (status.code() == StatusCode::kUnsupported) {
    unsupported = status.message();
  } else {
    fail(variant, status.message());
  }
  return false;
}

LseView Outputs::lse_view(const Tensor& placed) const {
  return {static_cast<float*>(placed.data), placed.stride[0], placed.stride[1], base};
}

HostTensor make_lse(LseLayout layout, int64_t heads, int64_t tokens) {
  switch (layout) {
    case LseLayout::kTokenMajor:
      return HostTensor(DType::kF32, {heads, tokens}, {1, heads});
    case LseLayout::kPaddedHeadMajor:
      return HostTensor(DType::kF32, {heads, tokens}, {tokens + 13, 1});
    default:
      return HostTensor(DType::kF32, {heads, tokens});
  }
}

void check_outputs(std::string_view variant, std::span<const ExpectedRow> expected, const Outputs& got,
                   std::span<const RowRange> written, Report& report) {
  HostTensor lse = got.lse;
  Comparison comparison = compare(expected, got.out.view(), got.lse_view(lse.view()));
  if (!comparison.ok()) comparison.failure = fmt::format("{}: {}", variant, comparison.failure);
  report.worst.add(comparison);
  if (const int64_t byte = first_touched(got.out, 0, written); byte >= 0) {
    report.fail(variant,
                fmt::format("out: bytes outside the call's rows must not change, got byte {}", byte));
  }
  if (const int64_t byte = first_touched(got.lse, 1, written); byte >= 0) {
    report.fail(variant,
                fmt::format("lse: bytes outside the call's rows must not change, got byte {}", byte));
  }
}

void check_unchanged(std::string_view variant, std::string_view name, const HostTensor& before,
                     const HostTensor& after, Report& report) {
  if (!same_bytes(before, after)) report.fail(variant, fmt::format("{}: input must not change", name));
}

void check_same(std::string_view variant, const Outputs& first, const Outputs& second, Report& report) {
  if (!same_bytes(first.out, second.out)) report.fail(variant, "out: must be bitwise equal, got another");
  if (!same_bytes(first.lse, second.lse)) report.fail(variant, "lse: must be bitwise equal, got another");
}

}  // namespace mlaprefill::verify
