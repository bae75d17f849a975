// What walks a vector and gains from AVX-512: values picked out.
#include "avx512.h"

// Compressed in a register, then stored with whatever is behind: some cores store compressed lanes
// one by one. No more than `at` were found so far, so that the store ends within len.
INLINE size_t put(uint32_t *out, size_t at, __mmask16 there, __mmask16 above) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i indices = _mm512_add_epi32(_mm512_set1_epi32((int)at), lanes);
    _mm512_mask_storeu_epi32(out, there, _mm512_maskz_compress_epi32(above, indices));
    return (size_t)__builtin_popcount(above);
}

size_t gk_above_u32_f32_f32_avx512(uint32_t *out, const float *x, size_t len, float threshold) {
    const __m512 t = _mm512_set1_ps(threshold);
    const __mmask16 all = 0xffff;
    size_t count = 0, i = 0;
    for (; i + LANES <= len; i += LANES) {
        __mmask16 above = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), t, _CMP_GT_OQ);
        if (above != 0) {
            count += put(out + count, i, all, above);
        }
    }
    __mmask16 there = (__mmask16)((1u << (len - i)) - 1);
    __mmask16 above = _mm512_cmp_ps_mask(_mm512_maskz_loadu_ps(there, x + i), t, _CMP_GT_OQ);
    return count + put(out + count, i, there, above & there);
}
