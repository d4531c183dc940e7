// Products with weights in 8 or 4 bits, of numbers that are rounded to 8 bits in groups of GROUP:
//
//     sums[m][n] = sum over groups g of scale[m][g] * (sum over k in g of level[m][k] * w[k][n])
//
// Half a panel is W outputs. Levels of weights are unsigned, as the instruction wants them.
//
//     panel in 8 bits     [half][k / 4][W][4]     level + 128; an output's scale is applied by who takes the sums
//     panel in 4 bits     [half][k / 8][W][4]     a byte holds the levels n of k and, above, of k + 4: w = s(n - 8) + z
//     its scales          [half][k / GROUP][s: W | z: W], bfloat16
#pragma once
#include "product.h"

constexpr int GROUP = 32;  // numbers of a token, and weights of an output, that share a scale

// Numbers of some tokens in 8 bits: [tokens][k], and [tokens][k / GROUP] of what belongs to a group.
struct Levels {
    int8_t* levels;
    float *scales, *sums;  // sums of the group's numbers as they were rounded

    Levels from(int token, int k) const {
        const size_t groups = (size_t)token * (k / GROUP);
        return {levels + (size_t)token * k, scales + groups, sums + groups};
    }
};

#if defined(__AVX512VNNI__)
constexpr int MOST_TOKENS_OF_LEVELS = 8;

// Round a token's k numbers; k is a multiple of GROUP.
template <class Cell>
inline void round_to_levels(const Cell* x, int k, const Levels& out) {
    const F sign = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
    for (int g = 0; g < k / GROUP; g++, x += GROUP) {
        F low = load(x), high = load(x + W);
        const float largest = max_of(max(_mm512_and_ps(low, sign), _mm512_and_ps(high, sign)));
        const F factor = set(largest > 0 ? 127.f / largest : 0.f);
        I a = _mm512_cvtps_epi32(low * factor), b = _mm512_cvtps_epi32(high * factor);
        _mm_storeu_si128((__m128i*)(out.levels + g * GROUP), _mm512_cvtepi32_epi8(a));
        _mm_storeu_si128((__m128i*)(out.levels + g * GROUP + W), _mm512_cvtepi32_epi8(b));
        out.scales[g] = largest / 127.f;
        out.sums[g] = out.scales[g] * _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
    }
}

template <int M, int BITS>
inline void add_levels(const Levels& x, int k, const uint8_t* w, const bf16* scales, F (&sums)[M]) {
    const I four = _mm512_set1_epi8(15);
    for (int g = 0; g < k / GROUP; g++) {
        I dots[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) dots[m] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int i = 0; i < GROUP; i += 8, w += BITS * W) {
            _mm_prefetch((const char*)w + AHEAD / 2, _MM_HINT_T0);
            if (BITS == 8) _mm_prefetch((const char*)w + AHEAD / 2 + 64, _MM_HINT_T0);
            I low = load_words(w), high;
            if constexpr (BITS == 8) {
                high = load_words(w + 64);
            } else {
                high = _mm512_and_si512(_mm512_srli_epi16(low, 4), four);
                low = _mm512_and_si512(low, four);
            }
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                const int8_t* p = x.levels + (size_t)m * k + g * GROUP + i;
                dots[m] = _mm512_dpbusd_epi32(dots[m], low, _mm512_set1_epi32(word_at(p)));
                dots[m] = _mm512_dpbusd_epi32(dots[m], high, _mm512_set1_epi32(word_at(p + 4)));
            }
        }
        F scale, zero = set(-128.f);
        if constexpr (BITS == 4) {
            scale = load(scales);
            zero = fma(scale, set(-8.f), load(scales + W));
            scales += 2 * W;
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const size_t group = (size_t)m * (k / GROUP) + g;
            F own = set(x.scales[group]);
            if constexpr (BITS == 4) own = own * scale;
            sums[m] = fma(zero, set(x.sums[group]), fma(_mm512_cvtepi32_ps(dots[m]), own, sums[m]));
        }
    }
}

template <int M, int BITS, class Take>
inline void multiply_some_levels(const Levels& x, int k, const uint8_t* w, const bf16* scales, int first, const Take& take) {
    F sums[2][M];
    for (int half = 0; half < 2; half++) {
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) sums[half][m] = set(0.f);
        add_levels<M, BITS>(x, k, w + (size_t)half * k * W * BITS / 8, scales + (size_t)half * k / GROUP * 2 * W, sums[half]);
    }
    for (int m = 0; m < M; m++) take(first + m, sums[0][m], sums[1][m]);
}

template <int M, int BITS, class Take>
inline void multiply_levels_up_to(int count, const Levels& x, int k, const uint8_t* w, const bf16* scales, int first, const Take& take) {
    if (count == M) return multiply_some_levels<M, BITS>(x, k, w, scales, first, take);
    if constexpr (M > 1) multiply_levels_up_to<M - 1, BITS>(count, x, k, w, scales, first, take);
}

// take(m, low half of the sums, high half) for each of `count` tokens; `scales` are those of the panel, in 4 bits only.
template <int BITS, class Take>
inline void multiply_levels(const Levels& x, int count, const uint8_t* w, const bf16* scales, int k, const Take& take) {
    constexpr int MOST = MOST_TOKENS_OF_LEVELS;
    for (int parts = (count + MOST - 1) / MOST, first = 0; parts > 0; parts--) {
        const int some = (count - first + parts - 1) / parts;
        multiply_levels_up_to<MOST, BITS>(some, x.from(first, k), k, w, scales, first, take);
        first += some;
    }
}
#endif
