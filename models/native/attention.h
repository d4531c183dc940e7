// Attention of some consecutive tokens of one row, one head of K and V: K is turned and V is paired into panels, so that
// both products are those of product.h. Probabilities of one token run over columns in one order, from the row's first.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>
#include "tiles.h"

constexpr float LEAST = -1e30f;  // the score of a column that is not read
constexpr int STRETCH = 8 * PANEL;  // columns whose scores are kept at a time

// Memory of one thread.
struct Scratch {
    std::vector<char> scores;     // of a stretch, [columns / PANEL][queries][PANEL]
    std::vector<char> weights;    // as scores: probabilities before their sum divides them
    std::vector<char> panel;      // of K: [head_dim][PANEL]; of V: [columns][PANEL]
    std::vector<char> peaks;      // [queries], of the scores so far; those of the stretch in [queries][W]
    std::vector<char> sums;       // [queries][W], of the weights so far
    std::vector<char> shrink;     // [queries]: what a new peak leaves of sums and read
    std::vector<char> read;       // [queries][head_dim, padded]: V by the weights so far
    std::vector<char> queries;    // [queries][head_dim], those of one head of K and V side by side
};

template <class T>
T* room(std::vector<char>& memory, size_t count) {
    if (memory.size() < (count + 64) * sizeof(T)) memory.resize((count + 64) * sizeof(T));
    return reinterpret_cast<T*>(memory.data());
}

inline float* filled(std::vector<char>& memory, size_t count, float value) {
    float* numbers = room<float>(memory, count);
    std::fill(numbers, numbers + count, value);
    return numbers;
}

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

// Columns [first, first + PANEL) of K (columns, head_dim) as a panel over head_dim; those behind `count` are the last one.
template <class Cell>
void turn_keys(const Cell* keys, int head_dim, int first, int count, Cell* panel) {
    constexpr int CELLS = 4 / sizeof(Cell);  // in a word
    const int words = head_dim / CELLS;
    auto* out = reinterpret_cast<uint32_t*>(panel);
    auto column = [&](int c) { return keys + (size_t)(first + c < count ? first + c : count - 1) * head_dim; };
    int word = 0;
    for (; word + W <= words; word += W)
        for (int half = 0; half < 2; half++) {
            I lines[W];
            for (int i = 0; i < W; i++) lines[i] = load_words(column(half * W + i) + word * CELLS);
            transpose(lines);
            for (int i = 0; i < W; i++) store_words(out + (size_t)(word + i) * PANEL + half * W, lines[i]);
        }
    for (; word < words; word++)
        for (int c = 0; c < PANEL; c++) out[(size_t)word * PANEL + c] = word_at(column(c) + word * CELLS);
}

// Numbers [first, first + PANEL) of V (columns, head_dim) as a panel over columns, zeros behind both ends: in bfloat16 up to
// a multiple of K_STEP.
inline void pair_values(const float* values, int head_dim, int first, int count, float* panel) {
    const int width = head_dim - first < PANEL ? head_dim - first : PANEL;
    for (int c = 0; c < count; c++, panel += PANEL) {
        std::memcpy(panel, values + (size_t)c * head_dim + first, width * sizeof(float));
        std::memset(panel + width, 0, (PANEL - width) * sizeof(float));
    }
}
inline void pair_values(const bf16* values, int head_dim, int first, int count, bf16* panel) {
    const int width = head_dim - first < PANEL ? head_dim - first : PANEL;
    for (int c = 0; c < count; c += 2, panel += 2 * PANEL) {
        const bf16 *even = values + (size_t)c * head_dim + first, *odd = c + 1 < count ? even + head_dim : nullptr;
#if defined(__AVX512BF16__)
        if (width == PANEL) {
            __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)even));
            __m512i b = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(even + W)));
            if (odd) {
                a = _mm512_or_si512(a, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)odd)), 16));
                b = _mm512_or_si512(b, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(odd + W))), 16));
            }
            store_words(panel, a);
            store_words(panel + PANEL, b);
            continue;
        }
#endif
        for (int i = 0; i < PANEL; i++) {
            panel[2 * i] = i < width ? even[i] : 0;
            panel[2 * i + 1] = i < width && odd ? odd[i] : 0;
        }
    }
    std::memset(panel, 0, (round_up(count, K_STEP) - round_up(count, 2)) * PANEL * sizeof(bf16));
}

// Ask memory for columns [first, first + PANEL) before they are needed.
template <class Cell>
inline void ask_for(const Cell* cells, int head_dim, int first, int count) {
    const int end = first + PANEL < count ? first + PANEL : count;
    const char *from = (const char*)(cells + (size_t)first * head_dim), *to = (const char*)(cells + (size_t)end * head_dim);
    for (; from < to; from += 64) _mm_prefetch(from, _MM_HINT_T0);
}

// Scores of columns [c, c + W), those that are not read as LEAST: a token reads valid columns up to `read`.
inline F readable(F scores, const uint8_t* valid, int c, int read) {
    uint8_t wanted[W] = {};
    scores = keep_first(scores, set(LEAST), read - c);
    if (!valid || c >= read) return scores;
    std::memcpy(wanted, valid + c, read - c < W ? read - c : W);
    return keep_lanes(scores, set(LEAST), wanted);
}

// queries   [tokens * group][head_dim], scaled; the first `group` are those of the first token
// keys      [count][head_dim], as values; valid: a byte a column, 0 where it holds nothing, or null
// The first token reads the columns up to count - tokens, the last one all, a stretch at a time, as in FlashAttention (Dao,
// ICLR 2024, section 3.1): stretches begin at the row's first column, so that a token's numbers are its own.
// put(query, first number, low half, high half) gets the sums, PANEL numbers at a time.
template <class Cell, class Put>
void attend(const Cell* queries, int tokens, int group, int head_dim, const Cell* keys, const Cell* values,
            const uint8_t* valid, int count, Scratch& scratch, const Put& put) {
    const int all = tokens * group, width = round_up(head_dim, PANEL), first_reads = count - tokens + 1;
    float *const scores = room<float>(scratch.scores, all * STRETCH), *const peaks = room<float>(scratch.peaks, all * (W + 1));
    float *const sums = filled(scratch.sums, all * W, 0), *const read = filled(scratch.read, all * width, 0);
    float *const shrink = room<float>(scratch.shrink, all), *const most = peaks + all;
    Cell* const weights = room<Cell>(scratch.weights, all * STRETCH);
    Cell* const panel = room<Cell>(scratch.panel, PANEL * (STRETCH > head_dim ? STRETCH : head_dim));
    std::fill(peaks, most, LEAST);
    for (int begin = 0; begin < count; begin += STRETCH) {
        const int end = begin + STRETCH < count ? begin + STRETCH : count;
        std::fill(most, most + all * W, LEAST);
        float* line = scores;
        for (int c = begin; c < end; c += PANEL, line += all * PANEL) {
            ask_for(keys, head_dim, c + PANEL, count);
            ask_for(values, head_dim, c, count);
            turn_keys(keys, head_dim, c, count, panel);
            const bool cut = valid || c + PANEL > first_reads;
            multiply(Lines<Cell>{queries, (size_t)head_dim}, all, panel, head_dim, [&](int q, F low, F high) {
                if (cut) {
                    low = readable(low, valid, c, first_reads + q / group);
                    high = readable(high, valid, c + W, first_reads + q / group);
                }
                store(line + q * PANEL, low);
                store(line + q * PANEL + W, high);
                store(most + q * W, max(load(most + q * W), max(low, high)));
            });
        }
        for (int q = 0; q < all; q++) {
            const float peak = max_of(max(load(most + q * W), set(peaks[q])));
            shrink[q] = peaks[q] - peak;
            peaks[q] = peak;
        }
        for (int q = 0; q < all; q += W) store(shrink + q, exponential(load(shrink + q)));
        for (int q = 0; q < all; q++) store(sums + q * W, load(sums + q * W) * set(shrink[q]));
        Cell* out = weights;
        line = scores;
        for (int c = begin; c < end; c += PANEL)
            for (int q = 0; q < all; q++, line += PANEL, out += PANEL) {
                const F peak = set(peaks[q]), low = exponential(load(line) - peak), high = exponential(load(line + W) - peak);
                store(out, low);
                store(out + W, high);
                store(sums + q * W, load(sums + q * W) + low + high);
            }
        const int paired = std::is_same<Cell, bf16>::value ? round_up(end - begin, K_STEP) : end - begin;
        for (int first = 0; first < head_dim; first += PANEL) {
            pair_values(values + (size_t)begin * head_dim, head_dim, first, end - begin, panel);
            multiply(Lines<Cell>{weights, PANEL, (size_t)all * PANEL}, all, panel, paired, [&](int q, F low, F high) {
                float* into = read + q * width + first;
                store(into, fma(load(into), set(shrink[q]), low));
                store(into + W, fma(load(into + W), set(shrink[q]), high));
            });
        }
    }
    for (int q = 0; q < all; q++) {
        const F factor = set(1.f / sum_of(load(sums + q * W)));
        for (int first = 0; first < head_dim; first += PANEL)
            put(q, first, load(read + q * width + first) * factor, load(read + q * width + first + W) * factor);
    }
}
