// Block tables and pages: only used columns and used slots are read, only the caller's slots are written.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "core/tensor_access.h"
#include "support/backend_test.h"
#include "support/conversation.h"

namespace mlaprefill {
namespace {

using verify::HostTensor;
using verify::LayerInputs;
using verify::Outputs;

class PagedCache : public BackendTest {};

TEST_P(PagedCache, UnusedColumnsAreNeverRead) {
  verify::LayerCase one{.name = "columns", .dims = layer_dims(), .requests = {{3, 40}, {2, 0}, {1, 16}}};
  const LayerInputs inputs(one);
  const auto num_blocks = static_cast<int32_t>(inputs.cache.view().shape[0]);
  for (const LayerPath path : layer_paths()) {
    verify::Report report;
    const Outputs first = verify::run_layer_once(inputs, {.path = path}, backend(), report);
    for (const int32_t junk : {-1, std::numeric_limits<int32_t>::max(), num_blocks, 0}) {
      LayerInputs other = inputs;
      for (int32_t& entry : other.block_table) entry = entry == 12345678 ? junk : entry;
      verify::check_same("junk", first, verify::run_layer_once(other, {.path = path}, backend(), report),
                         report);
    }
    EXPECT_EQ(report.problem(), "");
  }
}

TEST_P(PagedCache, ATableMayBeAViewOfAWiderOne) {
  verify::LayerCase one{.name = "view", .dims = layer_dims(), .requests = {{3, 40}, {2, 100}}};
  const LayerInputs inputs(one);
  std::vector<int32_t> wide(2 * 100, -7);
  for (int64_t r = 0; r < 2; ++r) {
    std::memcpy(wide.data() + r * 100, inputs.block_table.data() + r * inputs.block_table_cols,
                static_cast<size_t>(inputs.block_table_cols) * sizeof(int32_t));
  }
  RaggedBatch batch = inputs.batch();
  const auto narrow_plan = make_plan(one.dims, batch);
  batch.block_table = {wide.data(), 2, inputs.block_table_cols, 100};
  const auto wide_plan = make_plan(one.dims, batch);
  ASSERT_TRUE(narrow_plan.ok() && wide_plan.ok());
  EXPECT_EQ(wide_plan.value().blocks, narrow_plan.value().blocks);
}

TEST_P(PagedCache, PagesOfOneTokenEqualPagesOfSixtyFour) {
  const Conversation conversation(layer_dims(), 250);
  for (const LayerPath path : layer_paths()) {
    verify::Report report;
    const verify::LayerVariant variant{.path = path};
    const Outputs large =
        verify::run_layer_once(conversation.inputs(201, 250, DType::kBF16, 64), variant, backend(), report);
    const Outputs small =
        verify::run_layer_once(conversation.inputs(201, 250, DType::kBF16, 1), variant, backend(), report);
    verify::check_same("page of one token", large, small, report);
    EXPECT_EQ(report.problem(), "");
  }
}

TEST_P(PagedCache, AppendsIntoAPartialPageChangeTheirOwnRowsOnly) {
  for (const DType format : {DType::kBF16, DType::kF8E4M3, DType::kU8}) {
    for (int64_t tokens = 33; tokens <= 63; tokens += 10) {
      const int64_t width = format == DType::kU8 ? 656 : 576;
      const HostTensor cache(format, {3, 64, width});
      HostTensor latent(DType::kBF16, {tokens, 512});
      HostTensor rope(DType::kBF16, {tokens, 64});
      HostTensor slots(DType::kI64, {tokens});
      verify::Random random(68);
      verify::fill_random(latent, random);
      verify::fill_random(rope, random);
      for (int64_t i = 0; i < tokens; ++i) static_cast<int64_t*>(slots.view().data)[i] = 64 + 64 - tokens + i;

      verify::Placement placement(backend());
      const Tensor placed = placement.put(cache);
      const AppendArgs args{placement.put(latent),
                            placement.put(rope),
                            static_cast<const int64_t*>(placement.put(slots).data),
                            {placed, 1.0f}};
      ASSERT_EQ(backend().append(args, {}).message(), "");
      HostTensor got = placement.get(placed, cache);
      for (int64_t i = 0; i < tokens; ++i) {
        void* row = element_address(got.view(), 1, 64 - tokens + i);
        const auto bytes = static_cast<size_t>(width * size_bytes(format));
        EXPECT_NE(static_cast<const uint8_t*>(row)[0] & static_cast<const uint8_t*>(row)[1], 0xFF);
        std::memset(row, 0xFF, bytes);
      }
      EXPECT_EQ(std::memcmp(got.bytes().data(), cache.bytes().data(), cache.bytes().size()), 0);
    }
  }
}

TEST_P(PagedCache, WhatAppendWroteALayerReads) {
  // Tokens appended by the backend are the context of the next step.
  for (const DType format : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kU8}) {
    const Conversation conversation(MlaDims{2, 512, 128, 64, 128, 0.1}, 90);
    LayerInputs inputs = conversation.inputs(80, 90, format, 16);
    const LayerInputs cold = conversation.inputs(0, 90, format, 16);
    HostTensor slots(DType::kI64, {90});
    for (int64_t token = 0; token < 90; ++token) {
      const int64_t block = token < 80 ? inputs.block_table[static_cast<size_t>(token / 16)] : 0;
      static_cast<int64_t*>(slots.view().data)[token] = token < 80 ? block * 16 + token % 16 : -1;
    }
    verify::Placement placement(backend());
    const HostTensor empty(format, {inputs.cache.view().shape[0], 16, inputs.cache.view().shape[2]});
    const Tensor placed = placement.put(empty);
    const AppendArgs args{placement.put(cold.kv_latent),
                          placement.put(cold.k_rope),
                          static_cast<const int64_t*>(placement.put(slots).data),
                          {placed, 1.0f}};
    ASSERT_EQ(backend().append(args, {}).message(), "");
    inputs.cache = placement.get(placed, empty);
    inputs.config.variants = {{.path = LayerPath::kFused}, {.path = LayerPath::kComposed}};
    const auto expected = verify::expect(inputs, verify::all_heads(2));
    expect_passed(verify::run_layer(inputs, expected, backend()), backend(), std::string(to_string(format)));
  }
}

MLAPREFILL_FOR_EVERY_BACKEND(PagedCache);

}  // namespace
}  // namespace mlaprefill
