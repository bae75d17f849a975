// Everything that walks one or two vectors: exp, norms, rope, add, f16, argmax, checksum. AVX2.
#include "avx2.h"

void gk_exp_f32_f32_avx2(float *x, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        _mm256_storeu_ps(x + i, exp8(_mm256_loadu_ps(x + i)));
    }
    for (; i < len; i++) {
        x[i] = _mm256_cvtss_f32(exp8(_mm256_set1_ps(x[i])));
    }
}

INLINE __m256 silu8(__m256 x, __m256 up) {
    __m256 negative = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
    __m256 below = _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(negative));
    return _mm256_mul_ps(_mm256_div_ps(x, below), up);
}

void gk_silu_f32_f32_f32_avx2(float *gate, const float *up, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        __m256 y = silu8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i));
        _mm256_storeu_ps(gate + i, y);
    }
    for (; i < len; i++) {
        gate[i] = _mm256_cvtss_f32(silu8(_mm256_set1_ps(gate[i]), _mm256_set1_ps(up[i])));
    }
}

// What is surely closed is zero; a NaN goes on.
INLINE __m256 open8(__m256 by, __m256 x) {
    return _mm256_andnot_ps(_mm256_cmp_ps(by, _mm256_setzero_ps(), _CMP_LE_OQ), x);
}

INLINE __m256 relu8(__m256 x, __m256 up, bool both) {
    return open8(x, _mm256_mul_ps(x, both ? open8(up, up) : up));
}

INLINE void relu(float *gate, const float *up, size_t len, bool both) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        __m256 y = relu8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i), both);
        _mm256_storeu_ps(gate + i, y);
    }
    for (; i < len; i++) {
        gate[i] = _mm256_cvtss_f32(relu8(_mm256_set1_ps(gate[i]), _mm256_set1_ps(up[i]), both));
    }
}

void gk_drelu_f32_f32_f32_avx2(float *gate, const float *up, size_t len) {
    relu(gate, up, len, true);
}

void gk_relu_f32_f32_f32_avx2(float *gate, const float *up, size_t len) {
    relu(gate, up, len, false);
}

// The gelu of src/kernel/math.rs, step by step.
INLINE __m256 gelu8(__m256 x, __m256 up) {
    const __m256 line = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xbfcc422a));
    const __m256 cube = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xbd922279));
    __m256 factor = _mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(x, x), cube), line);
    __m256 below = _mm256_add_ps(_mm256_set1_ps(1.0f), exp8(_mm256_mul_ps(x, factor)));
    return _mm256_mul_ps(_mm256_div_ps(x, below), up);
}

void gk_gelu_f32_f32_f32_avx2(float *gate, const float *up, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        __m256 y = gelu8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i));
        _mm256_storeu_ps(gate + i, y);
    }
    for (; i < len; i++) {
        gate[i] = _mm256_cvtss_f32(gelu8(_mm256_set1_ps(gate[i]), _mm256_set1_ps(up[i])));
    }
}

float gk_sumsq_f32_f32_avx2(const float *x, size_t len) {
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    for (size_t i = 0; i < len; i += LANES) {
        float tail[LANES] = {0};
        const float *from = x + i;
        if (len - i < LANES) {
            from = tail;
            for (size_t j = i; j < len; j++) {
                tail[j - i] = x[j];
            }
        }
        __m256 x0 = _mm256_loadu_ps(from), x1 = _mm256_loadu_ps(from + 8);
        low = _mm256_add_ps(low, _mm256_mul_ps(x0, x0));
        high = _mm256_add_ps(high, _mm256_mul_ps(x1, x1));
    }
    return tree(low, high);
}

void gk_scale_f32_f32_f32_avx2(float *out, const float *x, const float *weight, float factor,
                               size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(factor));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(scaled, _mm256_loadu_ps(weight + i)));
    }
    for (; i < len; i++) {
        out[i] = x[i] * factor * weight[i];
    }
}

void gk_rope_f32_f32_avx2(float *x, const float *cos_sin, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), turn = _mm256_loadu_ps(cos_sin + i);
        __m256 straight = _mm256_mul_ps(v, _mm256_moveldup_ps(turn));
        __m256 crossed = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), _mm256_movehdup_ps(turn));
        _mm256_storeu_ps(x + i, _mm256_addsub_ps(straight, crossed));
    }
    for (; i < len; i += 2) {
        float x0 = x[i], x1 = x[i + 1], cos = cos_sin[i], sin = cos_sin[i + 1];
        x[i] = x0 * cos - x1 * sin;
        x[i + 1] = x1 * cos + x0 * sin;
    }
}

void gk_add_f32_f32_avx2(float *x, const float *y, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    }
    for (; i < len; i++) {
        x[i] += y[i];
    }
}

void gk_convert_f16_f32_avx2(uint16_t *out, const float *x, size_t len) {
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(out + i), halves);
    }
    for (; i < len; i++) {
        out[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
    }
}

size_t gk_argmax_u64_f32_avx2(const float *x, size_t len) {
    // max_ps gives its second operand when the first is NaN, so NaN never enters.
    __m256 m = _mm256_set1_ps(-__builtin_inff());
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        m = _mm256_max_ps(_mm256_loadu_ps(x + i), m);
    }
    for (; i < len; i++) {
        m = _mm256_max_ps(_mm256_set1_ps(x[i]), m);
    }
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    __m128 max = _mm_max_ss(m2, _mm_movehdup_ps(m2));
    for (i = 0; i + 8 <= len; i += 8) {
        __m256 x8 = _mm256_loadu_ps(x + i);
        int mask = _mm256_movemask_ps(_mm256_cmp_ps(x8, _mm256_broadcastss_ps(max), _CMP_EQ_OQ));
        if (mask != 0) {
            return i + (size_t)__builtin_ctz((unsigned)mask);
        }
    }
    for (; i < len; i++) {
        if (x[i] == _mm_cvtss_f32(max)) {
            return i;
        }
    }
    return len;
}

size_t gk_above_u32_f32_f32_avx2(uint32_t *out, const float *x, size_t len, float threshold) {
    size_t count = 0, i = 0;
    for (; i + 8 <= len; i += 8) {
        __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(threshold), _CMP_GT_OQ);
        for (unsigned mask = (unsigned)_mm256_movemask_ps(above); mask != 0; mask &= mask - 1) {
            out[count++] = (uint32_t)i + (uint32_t)__builtin_ctz(mask);
        }
    }
    for (; i < len; i++) {
        out[count] = (uint32_t)i;
        count += x[i] > threshold;
    }
    return count;
}

// A checksum over the bytes that follow, were they zeros, is a product modulo the polynomial:
// `factor` is x^(8 * bytes - 33), bits reversed.
INLINE uint64_t skip_zeros(uint64_t crc, uint32_t factor) {
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi32_si128((int)factor), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

uint32_t gk_crc32c_u32_u8_avx2(uint32_t seed, const uint8_t *bytes, size_t len) {
    typedef uint64_t word __attribute__((aligned(1), may_alias));
    enum { STREAM = 256 };
    uint64_t crc = ~seed;
    // Three streams hide the latency of the instruction.
    for (; len >= 3 * STREAM; bytes += 3 * STREAM, len -= 3 * STREAM) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < STREAM; i += 8) {
            crc = _mm_crc32_u64(crc, *(const word *)(bytes + i));
            second = _mm_crc32_u64(second, *(const word *)(bytes + STREAM + i));
            third = _mm_crc32_u64(third, *(const word *)(bytes + 2 * STREAM + i));
        }
        crc = skip_zeros(crc, 0xdd7e3b0c) ^ skip_zeros(second, 0xb9e02b86) ^ third;
    }
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        crc = _mm_crc32_u64(crc, *(const word *)(bytes + i));
    }
    for (; i < len; i++) {
        crc = _mm_crc32_u8((uint32_t)crc, bytes[i]);
    }
    return ~(uint32_t)crc;
}
