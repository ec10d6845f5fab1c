// Tests that hold for every backend of this machine.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/backends.h"
#include "verify/attention_case.h"
#include "verify/layer_case.h"

namespace mlaprefill {

/// Dims small enough for long sequences.
inline MlaDims small_dims(int32_t heads = 2) { return {heads, 64, 32, 16, 32, 0.15}; }

/// The parameter is an index into test_backends().
class BackendTest : public testing::TestWithParam<size_t> {
 protected:
  const Backend& backend() const { return *test_backends()[GetParam()].backend; }
  bool is_reference() const { return backend().name() == "reference"; }
  /// The smallest dims of a layer the backend serves.
  MlaDims layer_dims(int32_t heads = 2) const {
    const bool any = backend().supports({.dims = small_dims(heads)}).empty();
    return any ? small_dims(heads) : MlaDims{heads, 64, 128, 64, 128, 0.15};
  }
  bool serves(DType dtype) const {
    return backend()
        .supports({.dims = {2, 64, 128, 64, 128, 0.15},
                   .query_dtype = dtype,
                   .output_dtype = dtype,
                   .weight_dtype = dtype})
        .empty();
  }
  std::vector<LayerPath> layer_paths() const {
    if (!backend().has_fused_layer()) return {LayerPath::kComposed};
    return {LayerPath::kFused, LayerPath::kComposed};
  }
  /// Tensors of host memory may be given to the backend.
  bool reads_host_memory() const { return &backend().memory() == &host_memory(); }
};

inline std::string backend_test_name(const testing::TestParamInfo<size_t>& info) {
  std::string name = test_backends()[info.param].name;
  for (char& letter : name) letter = letter == '/' ? '_' : letter;
  return name;
}

/// Host backends serve everything; a device backend may refuse what its kernels do not serve.
inline bool may_refuse(const Backend& backend) { return &backend.memory() != &host_memory(); }

/// Fails on a problem. A refusal that is allowed marks the test as skipped.
inline void expect_passed(const verify::Report& report, const Backend& backend, const std::string& name) {
  if (may_refuse(backend) && report.ok() && !report.unsupported.empty()) GTEST_SKIP() << report.unsupported;
  EXPECT_EQ(report.problem(), "") << name;
}

/// Runs the case against the oracle, all heads.
inline void expect_agrees(const verify::AttentionCase& one, const Backend& backend) {
  const verify::AttentionInputs inputs(one);
  const auto expected = verify::expect(inputs, verify::all_heads(one.heads));
  expect_passed(verify::run_attention(inputs, expected, backend), backend, one.name);
}

inline void expect_agrees(const verify::LayerInputs& inputs, const Backend& backend) {
  const auto expected = verify::expect(inputs, verify::all_heads(inputs.config.dims.num_heads));
  expect_passed(verify::run_layer(inputs, expected, backend), backend, inputs.config.name);
}

}  // namespace mlaprefill

/// Ends the test if a run failed, or was refused by a backend that may refuse it.
#define ASSERT_RAN(report)                                                                          \
  if (may_refuse(backend()) && !(report).unsupported.empty()) GTEST_SKIP() << (report).unsupported; \
  ASSERT_EQ((report).problem(), "")

#define MLAPREFILL_FOR_EVERY_BACKEND(suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::Range(size_t{0}, mlaprefill::test_backends().size()), \
                           mlaprefill::backend_test_name)
