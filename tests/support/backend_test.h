// Tests that hold for every backend of this machine.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/backends.h"
#include "verify/attention_case.h"
#include "verify/layer_case.h"

namespace mlaprefill {

/// The parameter is an index into test_backends().
class BackendTest : public testing::TestWithParam<size_t> {
 protected:
  const Backend& backend() const { return *test_backends()[GetParam()].backend; }
  bool is_reference() const { return backend().name() == "reference"; }
  /// Tensors of host memory may be given to the backend.
  bool reads_host_memory() const { return &backend().memory() == &host_memory(); }
};

inline std::string backend_test_name(const testing::TestParamInfo<size_t>& info) {
  std::string name = test_backends()[info.param].name;
  for (char& letter : name) letter = letter == '/' ? '_' : letter;
  return name;
}

/// Runs the case against the oracle, all heads.
inline void expect_agrees(const verify::AttentionCase& one, const Backend& backend) {
  const verify::AttentionInputs inputs(one);
  const auto expected = verify::expect(inputs, verify::all_heads(one.heads));
  EXPECT_EQ(verify::run_attention(inputs, expected, backend).problem(), "") << one.name;
}

inline void expect_agrees(const verify::LayerInputs& inputs, const Backend& backend) {
  const auto expected = verify::expect(inputs, verify::all_heads(inputs.config.dims.num_heads));
  const verify::Report report = verify::run_layer(inputs, expected, backend);
  EXPECT_EQ(report.problem(), "") << inputs.config.name;
}

/// Dims small enough for long sequences.
inline MlaDims small_dims(int32_t heads = 2) { return {heads, 64, 32, 16, 32, 0.15}; }

}  // namespace mlaprefill

#define MLAPREFILL_FOR_EVERY_BACKEND(suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::Range(size_t{0}, mlaprefill::test_backends().size()), \
                           mlaprefill::backend_test_name)
