// Attention of some consecutive tokens of one row, one head of K and V: K is turned and V is paired into panels, so that
// both products are those of product.h. Probabilities of one token run over columns in one order, from the row's first.
#pragma once
#include <cmath>
#include <vector>
#include "tiles.h"

constexpr float LEAST = -1e30f;  // the score of a column that is not read

// Memory of one thread, which grows to what its longest row needs.
struct Scratch {
    std::vector<float> scores;    // [queries][columns]
    std::vector<char> weights;    // [queries][columns], probabilities before their sum divides them
    std::vector<char> panel;      // of K: [head_dim][PANEL]; of V: [columns][PANEL]
    std::vector<float> factors;   // [queries]
    std::vector<char> queries;    // [queries][head_dim], those of one head of K and V side by side
};

template <class T>
T* room(std::vector<char>& memory, size_t count) {
    if (memory.size() < (count + 64) * sizeof(T)) memory.resize((count + 64) * sizeof(T));
    return reinterpret_cast<T*>(memory.data());
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

// queries   [tokens * group][head_dim], scaled; the first `group` are those of the first token
// keys      [count][head_dim], as values; valid: a byte a column, 0 where it holds nothing, or null
// The first token reads the columns up to count - tokens, the last one all.
// put(query, first number, low half, high half) gets the sums, PANEL numbers at a time.
template <class Cell, class Put>
void attend(const Cell* queries, int tokens, int group, int head_dim, const Cell* keys, const Cell* values,
            const uint8_t* valid, int count, Scratch& scratch, const Put& put) {
    const int all = tokens * group, columns = round_up(count, PANEL);
    if (scratch.scores.size() < (size_t)all * columns) scratch.scores.resize((size_t)all * columns);
    if ((int)scratch.factors.size() < all) scratch.factors.resize(all);
    float* scores = scratch.scores.data();
    Cell* weights = room<Cell>(scratch.weights, (size_t)all * columns);
    Cell* panel = room<Cell>(scratch.panel, (size_t)PANEL * (columns > head_dim ? columns : head_dim));
    for (int c = 0; c < count; c += PANEL) {
        ask_for(keys, head_dim, c + PANEL, count);
        ask_for(values, head_dim, c, count);
        turn_keys(keys, head_dim, c, count, panel);
        multiply(queries, head_dim, all, panel, head_dim, [&](int q, F low, F high) {
            store(scores + (size_t)q * columns + c, low);
            store(scores + (size_t)q * columns + c + W, high);
        });
    }
    uint8_t wanted[W] = {};
    for (int q = 0; q < all; q++) {
        float* line = scores + (size_t)q * columns;
        const int read = count - tokens + q / group + 1;
        F most = set(LEAST);
        for (int c = 0; c < columns; c += W) {
            F v = keep_first(load(line + c), set(LEAST), read - c);
            if (valid && c < read) {
                std::memcpy(wanted, valid + c, read - c < W ? read - c : W);
                v = keep_lanes(v, set(LEAST), wanted);
            }
            store(line + c, v);
            most = max(most, v);
        }
        const F peak = set(max_of(most));
        F sum = set(0.f);
        for (int c = 0; c < columns; c += W) {
            F v = exponential(load(line + c) - peak);
            sum = sum + v;
            store(weights + (size_t)q * columns + c, v);
        }
        scratch.factors[q] = 1.f / sum_of(sum);
    }
    const int paired = round_up(count, K_STEP);
    for (int first = 0; first < head_dim; first += PANEL) {
        pair_values(values, head_dim, first, count, panel);
        multiply(weights, columns, all, panel, std::is_same<Cell, bf16>::value ? paired : count, [&](int q, F low, F high) {
            F factor = set(scratch.factors[q]);
            put(q, first, low * factor, high * factor);
        });
    }
}
