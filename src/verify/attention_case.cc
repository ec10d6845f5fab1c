#include "verify/attention_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/tensor_access.h"

namespace mlaprefill::verify {
namespace {

// A case's tensors in a backend's memory.
class PlacedCase {
 public:
  PlacedCase(const AttentionInputs& inputs, const Backend& backend)
      : inputs_(inputs),
        backend_(backend),
        placement_(backend),
        outputs_(inputs.outputs()),
        q_(placement_.put(inputs.q)),
        kv_(placement_.put(inputs.kv)),
        k_rope_(placement_.put(inputs.k_rope)),
        v_(placement_.put(inputs.v)),
        out_(placement_.put(outputs_.out)),
        lse_(placement_.put(outputs_.lse)) {}

  AttentionArgs args() const { return inputs_.args(q_, kv_, k_rope_, v_, out_, outputs_.lse_view(lse_)); }

  Status run(AttentionArgs& args) {
    const int64_t size_bytes = backend_.attention_workspace_bytes(args);
    if (size_bytes > 0) args.workspace = {placement_.put_buffer(size_bytes), size_bytes};
    if (!placement_.status().ok()) return placement_.status();
    return backend_.attention(args, {});
  }

  AttentionState make_state() {
    const int64_t rows = inputs_.q.view().shape[0];
    const int64_t heads = inputs_.config.heads;
    const auto floats = [this](int64_t count) {
      return static_cast<float*>(placement_.put_buffer(count * int64_t{sizeof(float)}));
    };
    return {floats(rows * heads * inputs_.config.v_dim), floats(rows * heads), floats(rows * heads)};
  }

  Outputs fetch(std::string_view variant, Report& report) {
    Outputs got{placement_.get(out_, outputs_.out), placement_.get(lse_, outputs_.lse), outputs_.base};
    check_unchanged(variant, "q", inputs_.q, placement_.get(q_, inputs_.q), report);
    check_unchanged(variant, "k", inputs_.kv, placement_.get(kv_, inputs_.kv), report);
    check_unchanged(variant, "k_rope", inputs_.k_rope, placement_.get(k_rope_, inputs_.k_rope), report);
    check_unchanged(variant, "v", inputs_.v, placement_.get(v_, inputs_.v), report);
    if (!placement_.status().ok()) report.fail(variant, placement_.status().message());
    return got;
  }

 private:
  const AttentionInputs& inputs_;
  const Backend& backend_;
  Placement placement_;
  Outputs outputs_;
  Tensor q_, kv_, k_rope_, v_, out_, lse_;
};

// The keys of every span in two calls: the first key tile, then the rest, which resumes the first's state.
Outputs attend_cut(const AttentionInputs& inputs, const Backend& backend, bool invariant,
                   std::string_view variant, Report& report) {
  PlacedCase placed(inputs, backend);
  AttentionArgs args = placed.args();
  args.state = placed.make_state();
  args.invariant = invariant;
  std::vector<AttentionSpan> head = inputs.spans;
  std::vector<AttentionSpan> tail = inputs.spans;
  for (size_t i = 0; i < head.size(); ++i) {
    const int64_t cut = std::min<int64_t>(backend.device_properties().key_tile_tokens, head[i].k_len);
    head[i].k_len = cut;
    head[i].store_state = true;
    tail[i].k_row += cut;
    tail[i].k_len -= cut;
    if (tail[i].causal_offset != AttentionSpan::kNotCausal) tail[i].causal_offset -= cut;
    tail[i].resume = true;
  }
  args.spans = head;
  if (!report.accept(variant, placed.run(args))) return {};
  args.spans = tail;
  if (!report.accept(variant, placed.run(args))) return {};
  return placed.fetch(variant, report);
}

}  // namespace

AttentionInputs::AttentionInputs(const AttentionCase& attention_case) : config(attention_case) {
  int64_t q_rows = 0;
  int64_t k_rows = 0;
  for (const auto& [queries, keys] : config.requests) {
    AttentionSpan span{.q_row = q_rows, .q_len = queries, .k_row = k_rows, .k_len = keys};
    if (config.causal) span.causal_offset = keys - queries;
    spans.push_back(span);
    q_rows += queries + config.padding_rows;
    k_rows += keys + config.padding_rows;
  }
  const int64_t qk_dim = config.nope + config.rope;
  const int64_t q_pitch = config.sliced ? config.heads * (qk_dim + 24) + 8 : config.heads * qk_dim;
  q = HostTensor(config.dtype, {q_rows, config.heads, qk_dim},
                 {q_pitch, config.sliced ? qk_dim + 24 : qk_dim, 1});
  const int64_t kv_columns = config.nope + (config.sliced ? config.v_dim : 0);
  kv = HostTensor(config.dtype, {k_rows, config.kv_heads, kv_columns});
  k_rope = HostTensor(config.dtype, {config.rope > 0 ? k_rows : 0, config.rope},
                      {config.sliced ? 576 : config.rope, 1});
  v = HostTensor(config.dtype, {config.sliced ? 0 : k_rows, config.kv_heads, config.v_dim});

  Random random(seed_of(config.name));
  const auto fill_rows = [&random](HostTensor& tensor, int64_t begin, int64_t count, float scale) {
    const Tensor view = tensor.view();
    const int64_t columns = view.shape[static_cast<size_t>(view.rank - 1)];
    const int64_t heads_of = view.rank == 3 ? view.shape[1] : 1;
    for (int64_t row = begin; row < std::min(begin + count, view.shape[0]); ++row) {
      for (int64_t head = 0; head < heads_of; ++head) {
        for (int64_t d = 0; d < columns; ++d) {
          const float value = scale * random.normal();
          view.rank == 3 ? tensor.set(value, row, head, d) : tensor.set(value, row, d);
        }
      }
    }
  };
  for (const AttentionSpan& span : spans) {
    fill_rows(q, span.q_row, span.q_len, config.logit_spread);
    fill_rows(kv, span.k_row, span.k_len, 1.0f);
    fill_rows(k_rope, span.k_row, span.k_len, 1.0f);
    fill_rows(v, span.k_row, span.k_len, 1.0f);
  }
}

AttentionArgs AttentionInputs::args(const ConstTensor& q_view, const ConstTensor& kv_view,
                                    const ConstTensor& rope_view, const ConstTensor& v_view,
                                    const Tensor& out, const LseView& lse) const {
  AttentionArgs args;
  args.q = q_view;
  args.k = slice_last(kv_view, 0, config.nope);
  if (config.rope > 0) args.k_rope = rope_view;
  args.v = config.sliced ? slice_last(kv_view, config.nope, config.v_dim) : v_view;
  args.spans = spans;
  args.softmax_scale = config.softmax_scale;
  args.out = out;
  args.lse = lse;
  return args;
}

AttentionArgs AttentionInputs::host_args() const {
  Tensor out;
  out.dtype = config.out_dtype;
  return args(q.view(), kv.view(), k_rope.view(), v.view(), out, {});
}

Outputs AttentionInputs::outputs() const {
  const int64_t rows = q.view().shape[0];
  const int64_t pitch = config.sliced ? config.heads * (config.v_dim + 16) + 16 : config.heads * config.v_dim;
  return {HostTensor(config.out_dtype, {rows, config.heads, config.v_dim},
                     {pitch, config.sliced ? config.v_dim + 16 : config.v_dim, 1}),
          make_lse(config.lse_layout, config.heads, rows), config.lse_base};
}

std::vector<RowRange> AttentionInputs::written() const {
  std::vector<RowRange> rows;
  for (const AttentionSpan& span : spans) rows.push_back({span.q_row, span.q_row + span.q_len});
  return rows;
}

std::vector<ExpectedRow> expect(const AttentionInputs& inputs, std::span<const int64_t> heads) {
  return expect_attention(inputs.host_args(), heads);
}

Outputs attend_once(const AttentionInputs& inputs, const Backend& backend, bool invariant, Report& report) {
  const char* variant = invariant ? "invariant" : "whole";
  PlacedCase placed(inputs, backend);
  AttentionArgs args = placed.args();
  args.invariant = invariant;
  if (!report.accept(variant, placed.run(args))) return {};
  return placed.fetch(variant, report);
}

Report run_attention(const AttentionInputs& inputs, std::span<const ExpectedRow> expected,
                     const Backend& backend) {
  Report report;
  const std::vector<RowRange> written = inputs.written();
  const auto done = [&report] { return !report.ok() || !report.unsupported.empty(); };

  const Outputs whole = attend_once(inputs, backend, false, report);
  if (done()) return report;
  check_outputs("whole", expected, whole, written, report);

  const Outputs cut = attend_cut(inputs, backend, false, "cut", report);
  if (done()) return report;
  check_outputs("cut", expected, cut, written, report);

  const Outputs invariant = attend_once(inputs, backend, true, report);
  if (done()) return report;
  check_outputs("invariant", expected, invariant, written, report);

  const Outputs invariant_cut = attend_cut(inputs, backend, true, "invariant cut", report);
  if (done()) return report;
  check_same("invariant cut", invariant, invariant_cut, report);
  return report;
}

}  // namespace mlaprefill::verify
