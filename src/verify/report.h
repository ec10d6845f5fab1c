// What running one case on one backend showed.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "verify/compare.h"
#include "verify/host_tensor.h"

namespace mlaprefill::verify {

struct Report {
  Comparison worst;         ///< over every variant of the case
  std::string unsupported;  ///< why the backend refused the case; then nothing was compared

  bool ok() const { return worst.ok(); }
  /// The failure or the refusal, empty when the case passed.
  std::string problem() const { return ok() ? unsupported : worst.failure; }
  /// Notes a failure unless there is one already.
  void fail(std::string_view variant, std::string_view what);
  /// Notes a refusal (kUnsupported) or a failure. False when the status is not ok.
  bool accept(std::string_view variant, const Status& status);
};

/// The output tensors of a call and the rows the call has to write.
struct Outputs {
  HostTensor out;  ///< [T, H, v]
  HostTensor lse;  ///< [H, T], any strides
  LseBase base = LseBase::kNatural;

  /// The LSE view over `lse` placed at a tensor view.
  LseView lse_view(const Tensor& placed) const;
};

enum class LseLayout : uint8_t {
  kHeadMajor,        ///< [H, T]
  kTokenMajor,       ///< [T, H]
  kPaddedHeadMajor,  ///< head stride T + 13
};

HostTensor make_lse(LseLayout layout, int64_t heads, int64_t tokens);

/// Query rows [begin, end).
struct RowRange {
  int64_t begin;
  int64_t end;
};

/// Compares fetched outputs with the oracle, and that nothing outside `written` changed.
void check_outputs(std::string_view variant, std::span<const ExpectedRow> expected, const Outputs& got,
                   std::span<const RowRange> written, Report& report);

/// Bytes must be those of `before`.
void check_unchanged(std::string_view variant, std::string_view name, const HostTensor& before,
                     const HostTensor& after, Report& report);

/// Bitwise equality of two runs.
void check_same(std::string_view variant, const Outputs& first, const Outputs& second, Report& report);

}  // namespace mlaprefill::verify
