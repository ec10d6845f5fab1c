// Choosing an ISA level from injected facts.
#include "backend/cpu/isa.h"

#include <gtest/gtest.h>

#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {
namespace {

constexpr uint64_t kAvxState = 0x7;
constexpr uint64_t kZmmState = 0xE7;
constexpr uint64_t kTileState = 0x600E7;

CpuFacts everything(const char* vendor) {
  return {.vendor = vendor,
          .avx2 = true,
          .avx512 = true,
          .avx512_bf16 = true,
          .amx_bf16 = true,
          .xcr0 = kTileState,
          .amx_permitted = true};
}

IsaLevel automatic(const CpuFacts& facts) { return choose_isa("auto", facts).value().level; }

TEST(ChooseIsa, TakesAmxWhereCpuSystemAndKernelGrantIt) {
  EXPECT_EQ(automatic(everything("GenuineIntel")), IsaLevel::kAmxBf16);
}

TEST(ChooseIsa, Avx512WithoutSavedZmmStateFallsToAvx2) {
  CpuFacts facts = everything("GenuineIntel");
  facts.xcr0 = kAvxState;
  EXPECT_EQ(automatic(facts), IsaLevel::kAvx2);
  const IsaChoice choice = choose_isa("auto", facts).value();
  EXPECT_NE(choice.why.find("avx512: the operating system does not save AVX-512 state"), std::string::npos)
      << choice.why;
}

TEST(ChooseIsa, AmxWithoutSavedTileStateFallsBelowAmx) {
  CpuFacts facts = everything("GenuineIntel");
  facts.xcr0 = kZmmState;
  EXPECT_EQ(automatic(facts), IsaLevel::kAvx512);
  EXPECT_NE(missing_for(IsaLevel::kAmxBf16, facts).find("tile state"), std::string::npos);
}

TEST(ChooseIsa, DeniedAmxPermissionIsNotFatal) {
  CpuFacts facts = everything("GenuineIntel");
  facts.amx_permitted = false;
  EXPECT_EQ(automatic(facts), IsaLevel::kAvx512);
  EXPECT_NE(missing_for(IsaLevel::kAmxBf16, facts).find("denied"), std::string::npos);
}

TEST(ChooseIsa, Bf16DotIsTakenOnAmdAndPassedOverOnIntel) {
  CpuFacts facts = everything("AuthenticAMD");
  facts.amx_bf16 = false;
  EXPECT_EQ(automatic(facts), IsaLevel::kAvx512Bf16);
  facts.vendor = "GenuineIntel";
  const IsaChoice choice = choose_isa("auto", facts).value();
  EXPECT_EQ(choice.level, IsaLevel::kAvx512);
  EXPECT_NE(choice.why.find("avx512_bf16: slower"), std::string::npos) << choice.why;
}

TEST(ChooseIsa, NoSavedAvxStateLeavesScalar) {
  CpuFacts facts = everything("GenuineIntel");
  facts.xcr0 = 0;
  EXPECT_EQ(automatic(facts), IsaLevel::kScalar);
}

TEST(ChooseIsa, ForcedLevelThatIsMissingIsRefusedWithTheReason) {
  CpuFacts facts = everything("GenuineIntel");
  facts.avx512_bf16 = false;
  const auto choice = choose_isa("avx512_bf16", facts);
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(choice.status().message().find("the CPU lacks AVX512_BF16"), std::string::npos);
}

TEST(ChooseIsa, ForcedLevelIsTaken) {
  EXPECT_EQ(choose_isa("scalar", everything("GenuineIntel")).value().level, IsaLevel::kScalar);
  EXPECT_EQ(choose_isa("avx512_bf16", everything("GenuineIntel")).value().level, IsaLevel::kAvx512Bf16);
}

TEST(ChooseIsa, UnknownNameListsTheKnownOnes) {
  const auto choice = choose_isa("sse9", everything("GenuineIntel"));
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(choice.status().message().find("amx_bf16"), std::string::npos);
}

TEST(OpenCpuBackend, DescriptionNamesTheLevelAndWhy) {
  BackendOptions options;
  options.isa = "scalar";
  options.num_threads = 1;
  const auto backend = open_backend("cpu", options);
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ(
      backend.value()->description(),
      "cpu, scalar (float32 tiles for bf16, float32 tiles for f16 and f32), 1 thread; forced by the isa "
      "option");
}

TEST(OpenCpuBackend, ThreadCountOutOfRangeIsRefused) {
  BackendOptions options;
  options.num_threads = -1;
  EXPECT_EQ(open_backend("cpu", options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace mlaprefill::cpu
