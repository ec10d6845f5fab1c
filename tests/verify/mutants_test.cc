// The case list notices a backend that does one thing wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/float_formats.h"
#include "core/tensor_access.h"
#include "verify/cases.h"

namespace mlaprefill {
namespace {

// The reference, with one call changed on the way in or out.
class Mutant final : public Backend {
 public:
  Mutant() : sound_(std::move(open_backend("reference")).value()) {}

  std::string_view name() const override { return "mutant"; }
  std::string description() const override { return "the reference with a fault"; }
  DeviceProperties device_properties() const override { return sound_->device_properties(); }
  std::vector<std::string> supports(const SupportQuery& query) const override {
    return sound_->supports(query);
  }
  Status attention(const AttentionArgs& given, Stream stream) const override {
    AttentionArgs args = given;
    std::vector<AttentionSpan> spans(given.spans.begin(), given.spans.end());
    for (AttentionSpan& span : spans) {
      if (change_span) change_span(span);
    }
    args.spans = spans;
    if (change_attention) change_attention(args);
    const Status status = sound_->attention(args, stream);
    if (after_attention) after_attention(given);
    return status;
  }
  Status merge(const MergeArgs& given, Stream stream) const override {
    MergeArgs args = given;
    std::vector<PartialAttention> partials(given.partials.begin(), given.partials.end());
    if (change_partials) change_partials(partials);
    args.partials = partials;
    return sound_->merge(args, stream);
  }
  Status append(const AppendArgs& given, Stream stream) const override {
    AppendArgs args = given;
    if (change_append) change_append(args);
    return sound_->append(args, stream);
  }
  Result<std::shared_ptr<const LayerWeights>> prepare_weights(const MlaDims& dims,
                                                              ConstTensor kv_b_proj) const override {
    return sound_->prepare_weights(dims, kv_b_proj);
  }
  Status expand(const ExpandArgs& given, Stream stream) const override {
    ExpandArgs args = given;
    if (change_cache) change_cache(args.cache);
    return sound_->expand(args, stream);
  }
  bool has_fused_layer() const override { return true; }
  Status fused_layer(const FusedLayerArgs& given, Stream stream) const override {
    FusedLayerArgs args = given;
    if (change_cache) change_cache(args.tensors.cache);
    return sound_->fused_layer(args, stream);
  }

  std::function<void(AttentionSpan&)> change_span;
  std::function<void(AttentionArgs&)> change_attention;
  std::function<void(const AttentionArgs&)> after_attention;
  std::function<void(std::vector<PartialAttention>&)> change_partials;
  std::function<void(AppendArgs&)> change_append;
  std::function<void(KvCache&)> change_cache;

 private:
  std::unique_ptr<Backend> sound_;
};

// Whether any case whose name contains `filter` fails.
bool noticed(const Mutant& mutant, const std::string& filter) {
  for (const verify::Case& one : verify::differential_cases(filter)) {
    if (!one.prepare()(mutant).ok()) return true;
  }
  return false;
}

constexpr const char* kAttention = "attention/192-128/f32/causal";

TEST(Mutants, TheUnchangedReferencePasses) {
  EXPECT_FALSE(noticed({}, kAttention));
  EXPECT_FALSE(noticed({}, "merge/bf16"));
  EXPECT_FALSE(noticed({}, "append/208"));
  EXPECT_FALSE(noticed({}, "cache-f8_e4m3"));
}

TEST(Mutants, IgnoredArgumentsOfAttention) {
  Mutant mutant;
  mutant.change_span = [](AttentionSpan& span) { span.causal_offset = AttentionSpan::kNotCausal; };
  EXPECT_TRUE(noticed(mutant, kAttention));
  mutant.change_span = [](AttentionSpan& span) {
    span.causal_offset = std::min<int64_t>(span.causal_offset, 0);
  };
  EXPECT_TRUE(noticed(mutant, kAttention));
  mutant.change_span = [](AttentionSpan& span) { span.resume = false; };
  EXPECT_TRUE(noticed(mutant, kAttention));
  mutant.change_span = nullptr;
  mutant.change_attention = [](AttentionArgs& args) { args.softmax_scale *= 1.0001; };
  EXPECT_TRUE(noticed(mutant, kAttention));
  mutant.change_attention = [](AttentionArgs& args) { args.lse.data = nullptr; };
  EXPECT_TRUE(noticed(mutant, kAttention));
  mutant.change_attention = [](AttentionArgs& args) { args.invariant = false; };
  EXPECT_TRUE(noticed(mutant, kAttention));
  mutant.change_attention = [](AttentionArgs& args) { args.lse.base = LseBase::kNatural; };
  EXPECT_TRUE(noticed(mutant, "token-major-log2"));
  mutant.change_attention = [](AttentionArgs& args) {
    std::swap(args.lse.head_stride, args.lse.token_stride);
  };
  EXPECT_TRUE(noticed(mutant, "attention/96-64/f32/sliced/token-major-log2"));
}

TEST(Mutants, WrongBytes) {
  Mutant mutant;
  const auto spoil = [&mutant](int64_t row, int64_t head, int64_t d, auto change) {
    mutant.after_attention = [=](const AttentionArgs& args) {
      void* value = element_address(args.out, row, head, d);
      store_float(value, args.out.dtype, 0, change(load_float(value, args.out.dtype, 0)));
    };
  };
  spoil(70, 1, 127, [](float value) { return value + 1e-5f; });
  EXPECT_TRUE(noticed(mutant, kAttention));
  spoil(70, 1, 127, [](float) { return std::numeric_limits<float>::quiet_NaN(); });
  EXPECT_TRUE(noticed(mutant, kAttention));
  // Between the rows of two requests, then between two heads of a row.
  spoil(5, 0, 0, [](float) { return 0.0f; });
  EXPECT_TRUE(noticed(mutant, "attention/96-64/f32/sliced"));
  spoil(0, 0, 65, [](float) { return 0.0f; });
  EXPECT_TRUE(noticed(mutant, "attention/96-64/f32/sliced"));
  mutant.after_attention = [](const AttentionArgs& args) {
    store_float(const_cast<void*>(args.q.data), args.q.dtype, 0, 0.0f);
  };
  EXPECT_TRUE(noticed(mutant, kAttention));
}

TEST(Mutants, MergesThatLoseOrMisreadAPartial) {
  Mutant mutant;
  mutant.change_partials = [](std::vector<PartialAttention>& partials) {
    if (!partials.empty()) partials.pop_back();
  };
  EXPECT_TRUE(noticed(mutant, "merge/f32"));
  mutant.change_partials = [](std::vector<PartialAttention>& partials) {
    for (PartialAttention& partial : partials) partial.lse.base = LseBase::kNatural;
  };
  EXPECT_TRUE(noticed(mutant, "merge/log2-to-natural"));
}

TEST(Mutants, CachesWithAnotherScaleOrAnotherSlot) {
  Mutant mutant;
  mutant.change_cache = [](KvCache& cache) { cache.scale = 1.0f; };
  EXPECT_TRUE(noticed(mutant, "bf16/cache-f8_e4m3"));
  mutant.change_cache = [](KvCache& cache) { cache.data.stride[1] = 0; };
  EXPECT_TRUE(noticed(mutant, "bf16/cache-bf16"));
  mutant.change_append = [](AppendArgs& args) { args.cache.scale = 1.0f; };
  EXPECT_TRUE(noticed(mutant, "append/512-64/bf16/cache-f8_e4m3"));
  mutant.change_append = [](AppendArgs& args) { args.k_rope.stride[0] = 0; };
  EXPECT_TRUE(noticed(mutant, "append/512-64/bf16/cache-bf16"));
}

}  // namespace
}  // namespace mlaprefill
