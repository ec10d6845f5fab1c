#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>

#include "core/tensor_access.h"
#include "verify/cases.h"

namespace mlaprefill::verify {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct MergeCase {
  std::string name{};
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 128;
  int64_t partials = 2;
  DType dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  LseLayout lse_layout = LseLayout::kHeadMajor;
  LseBase partial_base = LseBase::kNatural;
  LseBase out_base = LseBase::kNatural;
  bool sliced = false;    ///< partials are slices of wider rows
  int64_t in_place = -1;  ///< index of the partial that receives the result
};

struct MergeInputs {
  MergeCase config;
  std::vector<Outputs> partials;

  Outputs outputs() const {
    if (config.in_place >= 0) return partials[static_cast<size_t>(config.in_place)];
    return {HostTensor(config.out_dtype, {config.tokens, config.heads, config.dim}),
            make_lse(config.lse_layout, config.heads, config.tokens), config.out_base};
  }
};

// A quarter of the rows are empty, their output poison; a tenth of those say so by +inf; the others lie
// around -6e4, -3e38 or 0, where a finite initial maximum or a lost digit shows.
float random_lse(Random& random) {
  const int64_t kind = random.below(100);
  if (kind < 25) return kind < 3 ? kInfinity : -kInfinity;
  if (kind < 35) return -6.0e4f + 3.0f * random.normal();
  if (kind < 38) return -3.0e38f;
  return 4.0f * random.normal();
}

std::shared_ptr<const MergeInputs> make_inputs(const MergeCase& config) {
  auto inputs = std::make_shared<MergeInputs>();
  inputs->config = config;
  Random random(seed_of(config.name));
  const int64_t pitch = config.sliced ? config.dim + 8 : config.dim;
  for (int64_t i = 0; i < config.partials; ++i) {
    Outputs& partial = inputs->partials.emplace_back();
    partial.out =
        HostTensor(config.dtype, {config.tokens, config.heads, config.dim}, {config.heads * pitch, pitch, 1});
    partial.lse = make_lse(config.lse_layout, config.heads, config.tokens);
    partial.base = config.partial_base;
    for (int64_t t = 0; t < config.tokens; ++t) {
      for (int64_t h = 0; h < config.heads; ++h) {
        const float lse = random_lse(random);
        partial.lse.set(lse, h, t);
        for (int64_t d = 0; d < config.dim && !std::isinf(lse); ++d) {
          partial.out.set(random.normal(), t, h, d);
        }
      }
    }
  }
  return inputs;
}

double natural(double lse, LseBase base) {
  if (lse == kInfinity) return -kInfinity;
  return base == LseBase::kLog2 ? lse * std::numbers::ln2 : lse;
}

// The exact merge of one row, and the bounds of a float32 one.
struct MergedRow {
  std::vector<double> out;
  double lse = -kInfinity;
  double largest = 0.0;  ///< magnitude among the contributing outputs
};

MergedRow merge_exactly(const MergeInputs& inputs, int64_t token, int64_t head) {
  MergedRow row;
  row.out.assign(static_cast<size_t>(inputs.config.dim), 0.0);
  double max = -kInfinity;
  for (const Outputs& partial : inputs.partials) {
    max = std::max(max, natural(partial.lse.get(head, token), partial.base));
  }
  if (max == -kInfinity) return row;
  double sum = 0.0;
  for (const Outputs& partial : inputs.partials) {
    const double lse = natural(partial.lse.get(head, token), partial.base);
    if (lse == -kInfinity) continue;
    sum += std::exp(lse - max);
    for (size_t d = 0; d < row.out.size(); ++d) {
      const double value = partial.out.get(token, head, static_cast<int64_t>(d));
      row.out[d] += std::exp(lse - max) * value;
      row.largest = std::max(row.largest, std::fabs(value));
    }
  }
  for (double& value : row.out) value /= sum;
  row.lse = max + std::log(sum);
  return row;
}

void check_row(const MergedRow& row, const Outputs& got, int64_t token, int64_t head, Report& report) {
  Comparison& worst = report.worst;
  const DType dtype = got.out.view().dtype;
  for (size_t d = 0; d < row.out.size(); ++d) {
    const double value = got.out.get(token, head, static_cast<int64_t>(d));
    const double bound = rounding_step(dtype, row.out[d]) + 0x1p-20 * row.largest;
    if (!agrees(row.out[d], value, bound, worst.out) && worst.ok()) {
      worst.failure = mismatch_text(fmt::format("out[{}, {}, {}]", token, head, d), row.out[d], bound, value);
    }
  }
  double lse = got.lse.get(head, token);
  if (got.base == LseBase::kLog2) lse *= std::numbers::ln2;
  const double bound = std::isfinite(row.lse) ? 0x1p-22 + 0x1p-23 * std::fabs(row.lse) : 0.0;
  if (!agrees(row.lse, lse, bound, worst.lse) && worst.ok()) {
    worst.failure = mismatch_text(fmt::format("lse[{}, {}]", head, token), row.lse, bound, lse);
  }
}

Report run_merge(const MergeInputs& inputs, const Backend& backend) {
  Report report;
  Placement placement(backend);
  std::vector<Tensor> placed_out, placed_lse;
  std::vector<PartialAttention> partials;
  for (const Outputs& partial : inputs.partials) {
    placed_out.push_back(placement.put(partial.out));
    placed_lse.push_back(placement.put(partial.lse));
    partials.push_back({placed_out.back(), partial.lse_view(placed_lse.back())});
  }
  Outputs outputs = inputs.outputs();
  const auto target = static_cast<size_t>(inputs.config.in_place);
  const bool in_place = inputs.config.in_place >= 0;
  const Tensor out = in_place ? placed_out[target] : placement.put(outputs.out);
  const Tensor lse = in_place ? placed_lse[target] : placement.put(outputs.lse);
  outputs.base = inputs.config.out_base;
  const Status status = backend.merge({.partials = partials, .out = out, .lse = outputs.lse_view(lse)}, {});
  if (!report.accept("merge", status)) return report;

  const Outputs got{placement.get(out, outputs.out), placement.get(lse, outputs.lse), outputs.base};
  for (int64_t t = 0; t < inputs.config.tokens; ++t) {
    for (int64_t h = 0; h < inputs.config.heads; ++h) {
      check_row(merge_exactly(inputs, t, h), got, t, h, report);
    }
  }
  for (size_t i = 0; i < inputs.partials.size(); ++i) {
    if (in_place && i == target) continue;
    check_unchanged("merge", "partial", inputs.partials[i].out,
                    placement.get(placed_out[i], inputs.partials[i].out), report);
  }
  if (!placement.status().ok()) report.fail("merge", placement.status().message());
  return report;
}

void add(std::vector<Case>& cases, MergeCase config) {
  config.name = "merge/" + config.name;
  cases.push_back({config.name, [config] {
                     return [inputs = make_inputs(config)](const Backend& backend) {
                       return run_merge(*inputs, backend);
                     };
                   }});
}

}  // namespace

std::vector<Case> merge_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const std::string name{to_string(dtype)};
    add(cases, {.name = name + "/pair", .tokens = 37, .heads = 16, .dtype = dtype, .out_dtype = dtype});
    add(cases, {.name = name + "/eight",
                .tokens = 20,
                .heads = 5,
                .dim = 64,
                .partials = 8,
                .dtype = dtype,
                .out_dtype = DType::kF32});
  }
  add(cases, {.name = "square", .tokens = 16, .heads = 16});
  add(cases, {.name = "wide", .tokens = 9, .heads = 3, .dim = 272});
  add(cases, {.name = "none", .tokens = 4, .heads = 2, .partials = 0});
  add(cases, {.name = "one", .tokens = 11, .heads = 2, .partials = 1});
  add(cases, {.name = "no-tokens", .tokens = 0, .heads = 2});
  add(cases, {.name = "token-major-log2",
              .tokens = 16,
              .heads = 20,
              .lse_layout = LseLayout::kTokenMajor,
              .partial_base = LseBase::kLog2,
              .out_base = LseBase::kLog2,
              .sliced = true});
  add(cases, {.name = "log2-to-natural",
              .tokens = 16,
              .heads = 4,
              .partials = 3,
              .lse_layout = LseLayout::kPaddedHeadMajor,
              .partial_base = LseBase::kLog2});
  add(cases, {.name = "in-place-first", .tokens = 40, .heads = 8, .in_place = 0});
  add(cases, {.name = "in-place-last",
              .tokens = 40,
              .heads = 8,
              .partials = 3,
              .dtype = DType::kF32,
              .out_dtype = DType::kF32,
              .sliced = true,
              .in_place = 2});
  return cases;
}

}  // namespace mlaprefill::verify
