// Products of rows, heads, dims, blocks and strides beyond 31 and 32 bits. Tensors lie in reserved address
// space of which only the rows in use are touched.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/float_formats.h"
#include "core/tensor_access.h"
#include "support/backend_test.h"
#include "support/reservation.h"

namespace mlaprefill {
namespace {

using verify::AttentionCase;
using verify::AttentionInputs;
using verify::HostTensor;
using verify::Outputs;

constexpr int64_t k2To31 = int64_t{1} << 31;

// The rows of a compact tensor as rows first_row .. of a view with a wide token stride.
class FarTensor {
 public:
  FarTensor(const HostTensor& compact, int64_t first_row, int64_t token_stride)
      : source_(compact.view()), first_row_(first_row), reservation_(size(first_row, token_stride)) {
    view_ = compact.view_at(nullptr);
    view_.data = reservation_.data();
    view_.shape[0] += first_row;
    view_.stride[0] = token_stride;
    if (reservation_.data() == nullptr) return;
    for (int64_t row = 0; row < source_.shape[0]; ++row) copy(row, element_address(view_, first_row + row));
  }

  bool available() const { return reservation_.data() != nullptr; }
  const Tensor& view() const { return view_; }
  float get(int64_t row, int64_t head, int64_t d) const {
    return load_float(element_address(view_, first_row_ + row, head, d), view_.dtype, 0);
  }

 private:
  int64_t size(int64_t first_row, int64_t token_stride) const {
    return (first_row + source_.shape[0]) * token_stride * size_bytes(source_.dtype) + 65536;
  }
  void copy(int64_t row, void* to) const {
    std::memcpy(to, element_address(source_, row),
                static_cast<size_t>(source_.shape[1] * source_.shape[2] * size_bytes(source_.dtype)));
  }

  ConstTensor source_;
  int64_t first_row_;
  Reservation reservation_;
  Tensor view_;
};

class Offsets : public BackendTest {
 protected:
  struct Place {
    int64_t first_row;
    int64_t token_stride;
  };

  // The same small call with its query side and its key side far out must give the same bits.
  void expect_same_far_out(const AttentionCase& one, Place query, Place key) {
    if (!reads_host_memory()) GTEST_SKIP() << "needs host memory";
    const AttentionInputs inputs(one);
    verify::Report report;
    const Outputs near = verify::attend_once(inputs, backend(), false, report);
    ASSERT_RAN(report);

    const Outputs outputs = inputs.outputs();
    const FarTensor q(inputs.q, query.first_row, query.token_stride);
    const FarTensor out(outputs.out, query.first_row, query.token_stride);
    const FarTensor k(inputs.kv, key.first_row, key.token_stride);
    const FarTensor v(inputs.v, key.first_row, key.token_stride);
    const int64_t rows = q.view().shape[0];
    const Reservation lse(one.heads * rows * int64_t{sizeof(float)});
    if (!q.available() || !out.available() || !k.available() || !v.available() || lse.data() == nullptr) {
      GTEST_SKIP() << "no address space of this size";
    }
    auto* lse_data = reinterpret_cast<float*>(lse.data());
    AttentionArgs args = inputs.args(q.view(), k.view(), {}, v.view(), out.view(), {lse_data, rows, 1});
    std::vector<AttentionSpan> spans = inputs.spans;
    for (AttentionSpan& span : spans) {
      span.q_row += query.first_row;
      span.k_row += key.first_row;
    }
    args.spans = spans;
    ASSERT_EQ(backend().attention(args, {}).message(), "");
    for (int64_t row = 0; row < inputs.q.view().shape[0]; ++row) {
      for (int64_t head = 0; head < one.heads; ++head) {
        EXPECT_EQ(lse_data[head * rows + query.first_row + row], near.lse.get(head, row));
        for (int64_t d = 0; d < one.v_dim; ++d) ASSERT_EQ(out.get(row, head, d), near.out.get(row, head, d));
      }
    }
  }

  AttentionCase small(int64_t heads = 2) const {
    AttentionCase one{.name = "far", .requests = {{2, 3}, {1, 2}}};
    one.heads = one.kv_heads = heads;
    one.nope = one.v_dim = 64;
    one.rope = 0;
    return one;
  }
};

TEST_P(Offsets, TokenStridesBeyond31And32Bits) {
  for (const int64_t stride : {k2To31 + 64, 2 * k2To31 + 64}) {
    expect_same_far_out(small(), {0, stride}, {0, 128});
    expect_same_far_out(small(), {0, 128}, {0, stride});
  }
}

TEST_P(Offsets, KeyRowsPastTheWrapOfRowTimesStride) {
  expect_same_far_out(small(1), {0, 64}, {58253, 73728});
}

TEST_P(Offsets, ViewsOfAWiderBuffer) { expect_same_far_out(small(), {225304, 9728}, {0, 128}); }

TEST_P(Offsets, FewRowsOfALargeStride) { expect_same_far_out(small(), {4096, 1 << 20}, {4096, 1 << 20}); }

TEST_P(Offsets, RowsTimesHeadsTimesDimAroundTwoTo31) {
  for (const int64_t request : {255, 256, 257}) {
    expect_same_far_out(small(128), {request * 512 - 1, 128 * 128}, {request * 512 - 1, 128 * 128});
  }
}

TEST_P(Offsets, SlotsTimesRowBytesBeyond31Bits) {
  if (!reads_host_memory()) GTEST_SKIP() << "needs host memory";
  struct Format {
    DType dtype;
    int64_t width;
    std::vector<int64_t> slots;
  };
  for (const Format& format :
       {Format{DType::kF8E4M3, 576, {3728270, 4000000}}, Format{DType::kU8, 656, {3273604, 3273605}},
        Format{DType::kBF16, 576, {3728270, 4000000}}}) {
    const int64_t slots = format.slots[1] + 1;
    const Reservation far(slots * format.width * size_bytes(format.dtype));
    if (far.data() == nullptr) GTEST_SKIP() << "no address space of this size";
    HostTensor near(format.dtype, {2, 1, format.width});
    HostTensor latent(DType::kBF16, {2, 512});
    HostTensor rope(DType::kBF16, {2, 64});
    verify::Random random(44);
    verify::fill_random(latent, random);
    verify::fill_random(rope, random);
    AppendArgs args{latent.view(), rope.view(), format.slots.data(), {}};
    args.cache.data = Tensor(far.data(), format.dtype, {slots, 1, format.width});
    ASSERT_EQ(backend().append(args, {}).message(), "");
    const std::vector<int64_t> first_two{0, 1};
    args.slot_mapping = first_two.data();
    args.cache.data = near.view();
    ASSERT_EQ(backend().append(args, {}).message(), "");
    const auto row_bytes = static_cast<size_t>(format.width * size_bytes(format.dtype));
    for (size_t i = 0; i < 2; ++i) {
      const std::byte* stored = far.data() + static_cast<size_t>(format.slots[i]) * row_bytes;
      const void* expected = element_address(near.view(), static_cast<int64_t>(i));
      EXPECT_EQ(std::memcmp(stored, expected, row_bytes), 0) << to_string(format.dtype);
    }
  }
}

// A layer whose cached rows lie in blocks `ids` of a cache at `base`, read back from there.
TEST_P(Offsets, CachedRowsInHighBlocksAndAcrossA4GiBBoundary) {
  if (!reads_host_memory()) GTEST_SKIP() << "needs host memory";
  verify::LayerCase one{.name = "high blocks", .dims = {1, 512, 16, 64, 16, 0.1}, .requests = {{1, 6}}};
  one.cache_dtype = DType::kF8E4M3;
  one.cache_scale = 0.0625f;
  one.block_size = 1;
  const verify::LayerInputs inputs(one);
  const int64_t row_bytes = 576;
  const int64_t boundary = int64_t{1} << 32;
  const Reservation reservation(3 * boundary);
  if (reservation.data() == nullptr) GTEST_SKIP() << "no address space of this size";
  const auto address = reinterpret_cast<uintptr_t>(reservation.data());
  const auto to_boundary = boundary - static_cast<int64_t>(address % static_cast<uintptr_t>(boundary));

  for (const auto& [base, first_block] : {std::pair<std::byte*, int32_t>{reservation.data(), 3999990},
                                          {reservation.data() + to_boundary - 3 * row_bytes, 0}}) {
    verify::LayerInputs far = inputs;
    for (int32_t position = 0; position < 6; ++position) {
      const int32_t near_block = inputs.block_table[static_cast<size_t>(position)];
      const int32_t far_block = first_block + position;
      std::memcpy(base + far_block * row_bytes, element_address(inputs.cache.view(), near_block), row_bytes);
      far.block_table[static_cast<size_t>(position)] = far_block;
    }
    RaggedBatch batch = far.batch();
    batch.num_cache_blocks = first_block + 6;
    const auto layer = MlaLayer::create(backend(), one.dims, inputs.kv_b_proj.view());
    const auto plan = make_plan(one.dims, batch, {}, backend().device_properties());
    ASSERT_TRUE(layer.ok() && plan.ok());
    verify::Report report;
    for (const LayerPath path : layer_paths()) {
      const Outputs near_result = verify::run_layer_once(inputs, {.path = path}, backend(), report);
      ASSERT_RAN(report);
      Outputs got = inputs.outputs();
      LayerTensors tensors = inputs.host_tensors();
      tensors.cache = {Tensor(base, DType::kF8E4M3, {batch.num_cache_blocks, 1, row_bytes}), one.cache_scale};
      tensors.out = got.out.view();
      tensors.lse = got.lse_view(got.lse.view());
      std::vector<std::max_align_t> workspace(
          static_cast<size_t>(plan.value().workspace.total_bytes / 16 + 1));
      const Workspace lent{workspace.data(), plan.value().workspace.total_bytes};
      ASSERT_EQ(layer.value().run(plan.value(), tensors, lent, path).message(), "");
      verify::check_same("high blocks", near_result, got, report);
      EXPECT_EQ(report.problem(), "");
    }
  }
}

// Zero logits and one-hot values: the output counts the visible keys.
TEST_P(Offsets, KeyCountsAround16Bits) {
  for (const int64_t keys : {32767, 32768, 32769, 33728, 65535, 65536, 65537}) {
    for (const int64_t queries : {1, 8}) {
      AttentionCase one{.name = "counts",
                        .requests = {{queries, keys}},
                        .out_dtype = DType::kF32,
                        .heads = 1,
                        .kv_heads = 1,
                        .nope = 192,
                        .rope = 0,
                        .v_dim = 128,
                        .causal = false,
                        .logit_spread = 0.0f};
      AttentionInputs inputs(one);
      for (int64_t key = 0; key < keys; ++key) {
        for (int64_t d = 0; d < 16; ++d) inputs.v.set(key % 16 == d ? 1.0f : 0.0f, key, 0, d);
      }
      verify::Report report;
      const Outputs got = verify::attend_once(inputs, backend(), false, report);
      ASSERT_RAN(report);
      for (int64_t d = 0; d < 16; ++d) {
        const double count = static_cast<double>(keys / 16 + (d < keys % 16 ? 1 : 0));
        EXPECT_NEAR(got.out.get(queries - 1, 0, d), count / static_cast<double>(keys), 1e-7);
      }
      EXPECT_NEAR(got.lse.get(0, 0), std::log(static_cast<double>(keys)), 2e-6);
    }
  }
}

TEST_P(Offsets, EightyThousandShortRequests) {
  AttentionCase one{.name = "many",
                    .out_dtype = DType::kF32,
                    .heads = 1,
                    .kv_heads = 1,
                    .nope = 16,
                    .rope = 0,
                    .v_dim = 16,
                    .logit_spread = 0.0f};
  one.requests.assign(80000, {2, 2});
  AttentionInputs inputs(one);
  for (int64_t key = 0; key < 80000 * 2; ++key) {
    for (int64_t d = 0; d < 16; ++d) inputs.v.set(key % 2 == d ? 1.0f : 0.0f, key, 0, d);
  }
  verify::Report report;
  const Outputs got = verify::attend_once(inputs, backend(), false, report);
  ASSERT_RAN(report);
  for (int64_t row = 0; row < 80000 * 2; ++row) {
    const int64_t visible = row % 2 + 1;
    for (int64_t d = 0; d < 16; ++d) {
      const double share = d < visible ? 1.0 / static_cast<double>(visible) : 0.0;
      ASSERT_NEAR(got.out.get(row, 0, d), share, 1e-7) << row;
    }
    ASSERT_NEAR(got.lse.get(0, row), std::log(static_cast<double>(visible)), 2e-6) << row;
  }
}

TEST_P(Offsets, MergesOfManyTokens) {
  for (const int64_t tokens : {70000, 1200000}) {
    HostTensor out(DType::kBF16, {tokens, 1, 16});
    HostTensor lse(DType::kF32, {1, tokens});
    for (int64_t row = 0; row < tokens; ++row) {
      for (int64_t d = 0; d < 16; ++d) out.set(static_cast<float>(row % 128), row, 0, d);
      lse.set(0.0f, 0, row);
    }
    verify::Placement placement(backend());
    const Outputs state{out, lse, LseBase::kNatural};
    const PartialAttention partial{placement.put(out), state.lse_view(placement.put(lse))};
    const Tensor merged = placement.put(out);
    const Tensor merged_lse = placement.put(lse);
    const std::vector<PartialAttention> partials{partial, partial};
    ASSERT_EQ(backend().merge({partials, merged, state.lse_view(merged_lse)}, {}).message(), "");
    const HostTensor got = placement.get(merged, out);
    const HostTensor got_lse = placement.get(merged_lse, lse);
    for (int64_t row = 0; row < tokens; ++row) {
      ASSERT_EQ(got.get(row, 0, 15), static_cast<float>(row % 128));
      ASSERT_NEAR(got_lse.get(0, row), std::log(2.0), 1e-6);
    }
  }
}

MLAPREFILL_FOR_EVERY_BACKEND(Offsets);

}  // namespace
}  // namespace mlaprefill
