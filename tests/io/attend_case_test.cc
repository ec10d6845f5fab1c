#include "io/attend_case.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "io/safetensors_writer.h"
#include "io/temporary_folder.h"

namespace mlaprefill {
namespace {

// The tensors of a case file, by dtype and shape; contents are zero but for the integers given.
struct CaseFile {
  struct Entry {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<int32_t> integers;
  };
  std::map<std::string, Entry> tensors;
  std::map<std::string, std::string> metadata;

  Result<AttendCase> load(const CaseOptions& options = {}) const {
    const TemporaryFolder folder;
    std::vector<OwnedTensor> memory;
    std::vector<NamedTensor> named;
    for (const auto& [name, entry] : tensors) {
      memory.push_back(OwnedTensor::allocate(entry.dtype, entry.shape).value());
      const auto bytes = memory.back().memory.bytes();
      std::fill(bytes.begin(), bytes.end(), std::byte{0});
      std::copy(entry.integers.begin(), entry.integers.end(), static_cast<int32_t*>(memory.back().view.data));
      named.push_back({name, memory.back().view});
    }
    auto out = OutputFile::create(folder.path("case"));
    EXPECT_TRUE(out.ok() && write_safetensors(out.value(), named, metadata).ok() && out->commit().ok());
    const auto file = SafetensorsFile::open(folder.path("case"));
    auto loaded = load_attend_case(file.value(), options);
    if (loaded.ok()) return loaded;
    const std::string& message = loaded.status().message();
    EXPECT_TRUE(message.starts_with(folder.path("case") + ": ")) << message;
    return Status(loaded.status().code(), message.substr(folder.path("case").size() + 2));
  }

  std::string error(const CaseOptions& options = {}) const { return load(options).status().message(); }
};

// 2 requests of 2 and 1 new tokens, 3 heads, (nope, rope, v, rank) = (16, 16, 32, 48); the first has context.
CaseFile layer_file() {
  CaseFile file;
  file.tensors["query_start_loc"] = {DType::kI32, {3}, {0, 2, 3}};
  file.tensors["context_lens"] = {DType::kI32, {2}, {5, 0}};
  file.tensors["q"] = {DType::kBF16, {3, 3, 32}, {}};
  file.tensors["kv_latent"] = {DType::kBF16, {3, 48}, {}};
  file.tensors["k_rope"] = {DType::kBF16, {3, 16}, {}};
  file.tensors["kv_b_proj"] = {DType::kBF16, {3 * 48, 48}, {}};
  file.tensors["kv_cache"] = {DType::kBF16, {4, 4, 64}, {}};
  file.tensors["block_table"] = {DType::kI32, {2, 2}, {3, 1, -1, -1}};
  file.metadata["softmax_scale"] = "0.125";
  return file;
}

CaseFile plain_file() {
  CaseFile file;
  file.tensors["q"] = {DType::kF32, {3, 4, 8}, {}};
  file.tensors["k"] = {DType::kF32, {5, 2, 8}, {}};
  file.tensors["v"] = {DType::kF32, {5, 2, 6}, {}};
  file.tensors["cu_seqlens_q"] = {DType::kI32, {3}, {0, 2, 3}};
  file.tensors["cu_seqlens_k"] = {DType::kI32, {3}, {0, 2, 5}};
  file.metadata["softmax_scale"] = "0.125";
  return file;
}

TEST(LayerCase, DimsComeFromTheShapes) {
  const auto loaded = layer_file().load();
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto& layer = std::get<LayerCase>(loaded.value());
  EXPECT_EQ(layer.dims.num_heads, 3);
  EXPECT_EQ(layer.dims.kv_lora_rank, 48);
  EXPECT_EQ(layer.dims.qk_nope_head_dim, 16);
  EXPECT_EQ(layer.dims.qk_rope_head_dim, 16);
  EXPECT_EQ(layer.dims.v_head_dim, 32);
  EXPECT_EQ(layer.dims.softmax_scale, 0.125);
  EXPECT_EQ(layer.query_start_loc, (std::vector<int32_t>{0, 2, 3}));
  EXPECT_EQ(layer.block_table, (std::vector<int32_t>{3, 1, -1, -1}));
  EXPECT_EQ(layer.block_table_cols, 2);
}

TEST(LayerCase, ContextTensorsAreNeededForContextAlone) {
  CaseFile file = layer_file();
  file.tensors.erase("kv_cache");
  EXPECT_EQ(file.error(),
            "kv_cache: must be in the file when a request has context, got context_lens[0] = 5");
  file.tensors.erase("block_table");
  file.tensors["context_lens"].integers = {0, 0};
  EXPECT_EQ(file.error(), "");
}

TEST(LayerCase, FlagsWinOverMetadata) {
  CaseFile file = layer_file();
  file.metadata["softmax_scale"] = " -1.5e-1 ";
  EXPECT_EQ(std::get<LayerCase>(file.load().value()).dims.softmax_scale, -0.15);
  EXPECT_EQ(std::get<LayerCase>(file.load({.softmax_scale = 2.0}).value()).dims.softmax_scale, 2.0);
  file.metadata["softmax_scale"] = "1/8";
  EXPECT_EQ(file.error(), "__metadata__: softmax_scale must be a number, got '1/8'");
  file.metadata["softmax_scale"] = "nan";
  EXPECT_EQ(file.error(), "softmax_scale: must be finite, got nan");
  file.metadata.clear();
  EXPECT_EQ(file.error(),
            "softmax_scale: must be given by --softmax-scale or the file's __metadata__, got none");
}

TEST(LayerCase, StatedNopeMustAgree) {
  CaseFile file = layer_file();
  file.metadata["qk_nope_head_dim"] = "16";
  EXPECT_EQ(file.error(), "");
  file.metadata["qk_nope_head_dim"] = "32";
  EXPECT_EQ(file.error(), "qk_nope_head_dim: must be q's shape[2] - k_rope's shape[1] = 16, got 32");
  EXPECT_EQ(file.error({.qk_nope_head_dim = 16}), "");
  file.metadata["qk_nope_head_dim"] = "1.5";
  EXPECT_EQ(file.error(), "__metadata__: qk_nope_head_dim must be an integer, got '1.5'");
}

TEST(LayerCase, IsAlwaysCausal) {
  CaseFile file = layer_file();
  EXPECT_EQ(file.error({.causal = true}), "");
  EXPECT_EQ(file.error({.causal = false}), "causal: must be true for a layer case, got false");
  file.metadata["causal"] = "False";
  EXPECT_EQ(file.error(), "causal: must be true for a layer case, got false");
  file.metadata["causal"] = "maybe";
  EXPECT_EQ(file.error(), "__metadata__: causal must be true or false, got 'maybe'");
}

TEST(LayerCase, CachesOfEveryDType) {
  CaseFile file = layer_file();
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3}) {
    file.tensors["kv_cache"].dtype = dtype;
    EXPECT_EQ(file.error(), "") << to_string(dtype);
  }
  file.tensors["kv_cache"] = {DType::kU8, {4, 4, 656}, {}};
  EXPECT_EQ(file.error(), "");
  file.tensors["kv_cache"].shape[2] = 576;
  EXPECT_EQ(file.error(), "kv_cache: shape[2] must be the packed row's bytes = 656, got 576");
  file.tensors["kv_cache"] = {DType::kF16, {4, 4, 63}, {}};
  EXPECT_EQ(file.error(), "kv_cache: shape[2] must be kv_lora_rank + rope = 64, got 63");
  file.tensors["kv_cache"] = {DType::kF16, {4, 0, 64}, {}};
  EXPECT_EQ(file.error(), "kv_cache: shape[1] must be a block size in 1 .. 2^31 - 1, got 0");
}

TEST(LayerCase, ScaleGoesWithAnF8CacheAlone) {
  CaseFile file = layer_file();
  const int32_t half_bits = 0x3F000000;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1}, std::vector<int64_t>{}}) {
    file.tensors["kv_scale"] = {DType::kF32, shape, {half_bits}};
    file.tensors["kv_cache"].dtype = DType::kF8E4M3;
    ASSERT_EQ(file.error(), "");
    EXPECT_EQ(std::get<LayerCase>(file.load().value()).kv_scale, 0.5f);
  }
  file.tensors["kv_cache"].dtype = DType::kBF16;
  EXPECT_EQ(file.error(), "kv_scale: must come with a kv_cache of dtype F8_E4M3, got BF16");
  file.tensors["kv_scale"] = {DType::kF32, {3}, {}};
  EXPECT_EQ(file.error(), "kv_scale: must have 1 element, got 3");
  file.tensors["kv_scale"] = {DType::kBF16, {1}, {}};
  EXPECT_EQ(file.error(), "kv_scale: dtype must be F32, got BF16");
}

TEST(LayerCase, EveryShapeAndDTypeIsCheckedByName) {
  const auto with = [](const std::string& name, DType dtype, std::vector<int64_t> shape) {
    CaseFile file = layer_file();
    file.tensors[name] = {dtype, std::move(shape), {}};
    return file.error();
  };
  EXPECT_EQ(with("q", DType::kU8, {3, 3, 32}), "q: dtype must be one of BF16, F16, F32, got U8");
  EXPECT_EQ(with("q", DType::kBF16, {3, 96}), "q: must have 3 dimensions, got [3, 96]");
  EXPECT_EQ(with("q", DType::kBF16, {3, 0, 32}), "q: shape[1] must be >= 1 heads, got 0");
  EXPECT_EQ(with("q", DType::kBF16, {3, 3, 8}), "q: shape[2] must be >= k_rope's 16, got 8");
  EXPECT_EQ(with("q", DType::kBF16, {4, 3, 32}), "kv_latent: shape[0] must be q's rows = 4, got 3");
  EXPECT_EQ(with("k_rope", DType::kBF16, {2, 16}), "k_rope: shape[0] must be q's rows = 3, got 2");
  EXPECT_EQ(with("kv_b_proj", DType::kBF16, {145, 48}),
            "kv_b_proj: shape[0] must be a multiple of q's 3 heads, got 145");
  EXPECT_EQ(with("kv_b_proj", DType::kBF16, {144, 64}),
            "kv_b_proj: shape[1] must be kv_latent's kv_lora_rank = 48, got 64");
  EXPECT_EQ(
      with("kv_b_proj", DType::kBF16, {48, 48}),
      "dims from q, k_rope, kv_latent and kv_b_proj: v_head_dim: must be a positive multiple of 16, got 0");
  EXPECT_EQ(with("query_start_loc", DType::kI64, {3}), "query_start_loc: dtype must be I32, got I64");
  EXPECT_EQ(with("query_start_loc", DType::kI32, {3}),
            "query_start_loc: last element must be q's rows = 3, got 0");
  EXPECT_EQ(with("block_table", DType::kI32, {3, 2}),
            "block_table: shape[0] must be the 2 requests of context_lens, got 3");
  EXPECT_EQ(
      with("notes", DType::kU8, {3}),
      "tensors of a layer case must be among query_start_loc, context_lens, q, kv_latent, k_rope, kv_b_proj, "
      "kv_cache, kv_scale, block_table, got 'notes'");
}

TEST(PlainCase, IsCausalUnlessToldOtherwise) {
  CaseFile file = plain_file();
  EXPECT_TRUE(std::get<PlainCase>(file.load().value()).causal);
  EXPECT_FALSE(std::get<PlainCase>(file.load({.causal = false}).value()).causal);
  file.metadata["causal"] = "false";
  EXPECT_FALSE(std::get<PlainCase>(file.load().value()).causal);
  EXPECT_TRUE(std::get<PlainCase>(file.load({.causal = true}).value()).causal);
}

TEST(PlainCase, EveryShapeIsCheckedByName) {
  const auto with = [](const std::string& name, std::vector<int64_t> shape) {
    CaseFile file = plain_file();
    file.tensors[name].shape = std::move(shape);
    return file.error();
  };
  EXPECT_EQ(with("k", {5, 2, 7}), "k: shape[2] must be q's head dim = 8, got 7");
  EXPECT_EQ(with("v", {4, 2, 6}), "v: shape[0] must be k's rows = 5, got 4");
  EXPECT_EQ(with("v", {5, 1, 6}), "v: shape[1] must be k's heads = 2, got 1");
  EXPECT_EQ(with("v", {0, 2, 1099511627776}), "v: shape[2] must be in 1 .. 1024, got 1099511627776");
  EXPECT_EQ(with("q", {3, 3, 8}), "q: shape[1] must be a multiple of k's 2 heads, got 3");
  EXPECT_EQ(with("q", {1099511627776, 2, 0}), "q: shape[2] must be in 1 .. 1024, got 0");
  EXPECT_EQ(with("k", {5, 0, 8}), "k: shape[1] must be >= 1 heads, got 0");
}

TEST(PlainCase, HasNoNopePart) {
  EXPECT_EQ(plain_file().error({.qk_nope_head_dim = 8}),
            "qk_nope_head_dim: must be left out for a plain case, got 8");
}

TEST(AttendCase, TensorsDecideTheKind) {
  CaseFile file = plain_file();
  file.tensors.erase("k");
  EXPECT_EQ(file.error(), "k: must be in the file, got no such tensor");
  file = layer_file();
  file.tensors["k"] = {DType::kBF16, {3, 3, 32}, {}};
  EXPECT_NE(file.error().find("got 'k'"), std::string::npos);
  EXPECT_EQ(CaseFile{}.error(),
            "tensors must be those of a layer case (query_start_loc, context_lens, q, kv_latent, k_rope, "
            "kv_b_proj, kv_cache, kv_scale, block_table) or of a plain case (q, k, v, cu_seqlens_q, "
            "cu_seqlens_k), got 0 tensors");
}

}  // namespace
}  // namespace mlaprefill
