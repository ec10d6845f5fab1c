// bf16 kernels on AVX512_BF16 (vdpbf16ps).
#include "backend/cpu/kernels/bf16-inl.h"

namespace mlaprefill::cpu {
namespace {

struct Bf16Lanes {
  static constexpr int64_t kElementsPerWord = 2;
  static HWY_INLINE WordVec load_b(const uint32_t* p) { return hn::LoadU(kWords, p); }
  static HWY_INLINE WordVec broadcast_a(const uint32_t* p) { return hn::Set(kWords, load_word(p, 0)); }
  static HWY_INLINE FloatVec multiply_add(WordVec a, WordVec b, FloatVec sum) {
    return FloatVec{_mm512_dpbf16_ps(sum.raw, (__m512bh)a.raw, (__m512bh)b.raw)};
  }
};

}  // namespace

const KernelTable kAvx512Bf16Kernels = bf16_table<RowPanel>(IsaLevel::kAvx512Bf16, multiply<Bf16Lanes>);

}  // namespace mlaprefill::cpu
