// Products of a few tokens with one panel of weights, which is read once:
//
//     sums[m][n] = sum over k of x[m][k] * w[k][n]        n < PANEL
//
// x[m][k] is at m * stride + k / PANEL * jump + k % PANEL: PANEL is the jump of what lies in lines.
// A sum runs over k in one order whatever the number of tokens, so a token's numbers do not depend on its neighbours.
//
//     panel of float32      [k][PANEL]
//     panel of bfloat16     [k / 2][PANEL][2]     a word holds the weights of two k, so k is even
#pragma once
#include "simd.h"

constexpr int PANEL = 2 * W;
constexpr int AHEAD = 4096;  // bytes of weights that are asked of memory before they are needed

template <int M>
inline void add_products(const float* x, size_t stride, const float* w, int k, F (&sums)[M][2]) {
    for (int i = 0; i < k; i++, w += PANEL) {
        _mm_prefetch((const char*)w + AHEAD, _MM_HINT_T0);
        if (W == 16) _mm_prefetch((const char*)w + AHEAD + 64, _MM_HINT_T0);
        F low = load(w), high = load(w + W);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            F v = set(x[m * stride + i]);
            sums[m][0] = fma(v, low, sums[m][0]);
            sums[m][1] = fma(v, high, sums[m][1]);
        }
    }
}

template <int M>
inline void add_products(const float* x, size_t stride, const bf16* w, int k, F (&sums)[M][2]) {
    for (int i = 0; i < k; i += 2, w += 2 * PANEL) {
        _mm_prefetch((const char*)w + AHEAD, _MM_HINT_T0);
        if (W == 16) _mm_prefetch((const char*)w + AHEAD + 64, _MM_HINT_T0);
        I low = load_words(w), high = load_words(w + PANEL);
        F even[2] = {even_halves(low), even_halves(high)}, odd[2] = {odd_halves(low), odd_halves(high)};
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            F first = set(x[m * stride + i]), second = set(x[m * stride + i + 1]);
            sums[m][0] = fma(second, odd[0], fma(first, even[0], sums[m][0]));
            sums[m][1] = fma(second, odd[1], fma(first, even[1], sums[m][1]));
        }
    }
}

#if defined(__AVX512BF16__)
template <int M>
inline void add_products(const bf16* x, size_t stride, const bf16* w, int k, F (&sums)[M][2]) {
    for (int i = 0; i < k; i += 2, w += 2 * PANEL) {
        _mm_prefetch((const char*)w + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char*)w + AHEAD + 64, _MM_HINT_T0);
        __m512bh low = (__m512bh)load_words(w), high = (__m512bh)load_words(w + PANEL);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            __m512bh pair = (__m512bh)_mm512_set1_epi32(word_at(x + m * stride + i));
            sums[m][0] = _mm512_dpbf16_ps(sums[m][0], low, pair);
            sums[m][1] = _mm512_dpbf16_ps(sums[m][1], high, pair);
        }
    }
}
#endif

template <class T>
struct Lines {
    const T* first;
    size_t stride, jump = PANEL;

    Lines from(int m) const { return {first + m * stride, stride, jump}; }
    const T* at(int k) const { return first + k / PANEL * jump; }  // of the first line; k is a multiple of PANEL
};

template <int M, class X, class Weight, class Take>
inline void multiply_some(const Lines<X>& x, const Weight* w, int k, int first, const Take& take) {
    F sums[M][2];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = set(0.f);
    for (int i = 0; i < k; i += PANEL) add_products<M>(x.at(i), x.stride, w + i * PANEL, k - i < PANEL ? k - i : PANEL, sums);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) take(first + m, sums[m][0], sums[m][1]);
}

template <int M, class X, class Weight, class Take>
inline void multiply_up_to(int count, const Lines<X>& x, const Weight* w, int k, int first, const Take& take) {
    if (count == M) return multiply_some<M>(x.from(first), w, k, first, take);
    if constexpr (M > 1) multiply_up_to<M - 1>(count, x, w, k, first, take);
}

// take(m, low half of the sums, high half) for each of `count` tokens.
template <class X, class Weight, class Take>
inline void multiply(const Lines<X>& x, int count, const Weight* w, int k, const Take& take) {
    for (int parts = (count + MOST_TOKENS - 1) / MOST_TOKENS, first = 0; parts > 0; parts--) {
        int some = (count - first + parts - 1) / parts;
        multiply_up_to<MOST_TOKENS>(some, x, w, k, first, take);
        first += some;
    }
}
