// Vectors of float32 by instruction set: the only file that knows which one it is compiled for.
#pragma once
#include <immintrin.h>
#include <cstddef>
#include <cstdint>
#include <cstring>

using bf16 = uint16_t;  // the upper half of a float32

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
    uint32_t bits = static_cast<uint32_t>(x) << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}
inline void narrow(float x, float* out) { *out = x; }
inline void narrow(float x, bf16* out) {  // to the nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    *out = static_cast<bf16>(x != x ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline uint32_t word_at(const void* p) {
    uint32_t word;
    std::memcpy(&word, p, 4);
    return word;
}

#if defined(__AVX512F__)

constexpr int W = 16;  // lanes
constexpr int MOST_TOKENS = 14;  // that a product of one block of outputs keeps in registers
using F = __m512;
using I = __m512i;
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline F load(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
inline I load_words(const void* p) { return _mm512_loadu_si512(p); }
inline void store_words(void* p, I v) { _mm512_storeu_si512(p, v); }
inline F set(float x) { return _mm512_set1_ps(x); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline float sum_of(F v) { return _mm512_reduce_add_ps(v); }
inline float max_of(F v) { return _mm512_reduce_max_ps(v); }
inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline F even_halves(I pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline F odd_halves(I pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000))); }
inline F nearest(F x) { return _mm512_roundscale_ps(x, 0); }
inline F times_power_of_two(F x, F n) { return _mm512_scalef_ps(x, n); }
inline F keep_lanes(F v, F otherwise, const uint8_t* wanted) {  // v where the byte of a lane is not zero
    __mmask16 kept = _mm_test_epi8_mask(_mm_loadu_si128((const __m128i*)wanted), _mm_set1_epi8(-1));
    return _mm512_mask_blend_ps(kept, otherwise, v);
}
inline F zero_below(F v, F x, F least) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), v); }
inline F keep_first(F v, F otherwise, int lanes) {
    __mmask16 kept = lanes >= W ? 0xffff : lanes <= 0 ? 0 : (1u << lanes) - 1;
    return _mm512_mask_blend_ps(kept, otherwise, v);
}
inline void transpose(I r[16]) {  // 16 x 16 words
    I t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#else  // AVX2 and FMA

constexpr int W = 8;
constexpr int MOST_TOKENS = 5;
using F = __m256;
using I = __m256i;
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline F load(const bf16* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline I load_words(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline void store_words(void* p, I v) { _mm256_storeu_si256((__m256i*)p, v); }
inline F set(float x) { return _mm256_set1_ps(x); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline float sum_of(F v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float max_of(F v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
inline void store(float* p, F v) { _mm256_storeu_ps(p, v); }
inline F even_halves(I pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline F odd_halves(I pairs) { return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xffff0000))); }
inline F nearest(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F times_power_of_two(F x, F n) {
    I exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(exponent));
}
inline F keep_lanes(F v, F otherwise, const uint8_t* wanted) {
    I bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)wanted));
    return _mm256_blendv_ps(v, otherwise, _mm256_castsi256_ps(_mm256_cmpeq_epi32(bytes, _mm256_setzero_si256())));
}
inline F zero_below(F v, F x, F least) { return _mm256_and_ps(v, _mm256_cmp_ps(x, least, _CMP_GE_OQ)); }
inline F keep_first(F v, F otherwise, int lanes) {
    I place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    I kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), place);
    return _mm256_blendv_ps(otherwise, v, _mm256_castsi256_ps(kept));
}
inline void transpose(I r[8]) {  // 8 x 8 words
    I t[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++) r[i] = t[i];
}

#endif

inline void store(bf16* p, F v) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v));
#else
    float wide[W];
    store(wide, v);
    for (int i = 0; i < W; i++) narrow(wide[i], p + i);
#endif
}

// e to the x, with a relative error of some 2e-7; 0 below -87.
inline F exponential(F given) {
    const F least = set(-87.f), x = max(given, least);
    F n = nearest(x * set(1.44269504f));
    F r = fma(n, set(-0.693359375f), x);
    r = fma(n, set(2.12194440e-4f), r);
    F p = set(1.f / 720);
    for (float c : {1.f / 120, 1.f / 24, 1.f / 6, .5f, 1.f, 1.f}) p = fma(p, r, set(c));
    return zero_below(times_power_of_two(p, n), given, least);
}
