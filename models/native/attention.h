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
    std::vector<char> most;       // [queries][W], of the stretch's scores
    std::vector<char> peaks;      // [queries], of the scores so far
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

// What some consecutive tokens of one row read of one head of K and V, a stretch of columns at a time, as in FlashAttention
// (Dao, ICLR 2024, section 3.1). Stretches begin at the row's first column, so that a token's numbers are its own.
//
// queries   [tokens * group][head_dim], scaled; the first `group` are those of the first token
// keys      [count][head_dim], as values; valid: a byte a column, 0 where it holds nothing, or null
// The first token reads the columns up to count - tokens, the last one all.
template <class Cell>
class Attention {
public:
    Attention(const Cell* queries, int tokens, int group, int head_dim, const Cell* keys, const Cell* values,
              const uint8_t* valid, int count, Scratch& scratch)
        : queries_(queries), keys_(keys), values_(values), valid_(valid), group_(group), head_dim_(head_dim), count_(count),
          all_(tokens * group), width_(round_up(head_dim, PANEL)), first_reads_(count - tokens + 1),
          scores_(room<float>(scratch.scores, all_ * STRETCH)), most_(room<float>(scratch.most, all_ * W)),
          peaks_(filled(scratch.peaks, all_, LEAST)), sums_(filled(scratch.sums, all_ * W, 0)),
          shrink_(room<float>(scratch.shrink, all_)), read_(filled(scratch.read, all_ * width_, 0)),
          weights_(room<Cell>(scratch.weights, all_ * STRETCH)),
          panel_(room<Cell>(scratch.panel, PANEL * (STRETCH > head_dim ? STRETCH : head_dim))) {}

    // put(query, first number, low half, high half) gets the sums, PANEL numbers at a time.
    template <class Put>
    void run(const Put& put) {
        for (int begin = 0; begin < count_; begin += STRETCH) {
            const int end = begin + STRETCH < count_ ? begin + STRETCH : count_;
            score(begin, end);
            raise_peaks();
            weigh(end - begin);
            add(begin, end);
        }
        for (int q = 0; q < all_; q++) {
            const F factor = set(1.f / sum_of(load(sums_ + q * W)));
            const float* line = read_ + q * width_;
            for (int i = 0; i < head_dim_; i += PANEL) put(q, i, load(line + i) * factor, load(line + i + W) * factor);
        }
    }

private:
    void score(int begin, int end) {
        std::fill(most_, most_ + all_ * W, LEAST);
        float* line = scores_;
        for (int c = begin; c < end; c += PANEL, line += all_ * PANEL) {
            ask_for(keys_, head_dim_, c + PANEL, count_);
            ask_for(values_, head_dim_, c, count_);
            turn_keys(keys_, head_dim_, c, count_, panel_);
            const bool cut = valid_ || c + PANEL > first_reads_;
            multiply(Lines<Cell>{queries_, (size_t)head_dim_}, all_, panel_, head_dim_, [&](int q, F low, F high) {
                if (cut) {
                    low = readable(low, valid_, c, first_reads_ + q / group_);
                    high = readable(high, valid_, c + W, first_reads_ + q / group_);
                }
                store(line + q * PANEL, low);
                store(line + q * PANEL + W, high);
                store(most_ + q * W, max(load(most_ + q * W), max(low, high)));
            });
        }
    }

    void raise_peaks() {
        for (int q = 0; q < all_; q++) {
            const float peak = max_of(max(load(most_ + q * W), set(peaks_[q])));
            shrink_[q] = peaks_[q] - peak;
            peaks_[q] = peak;
        }
        for (int q = 0; q < all_; q += W) store(shrink_ + q, exponential(load(shrink_ + q)));
        for (int q = 0; q < all_; q++) store(sums_ + q * W, load(sums_ + q * W) * set(shrink_[q]));
    }

    void weigh(int columns) {
        const float* line = scores_;
        Cell* out = weights_;
        for (int c = 0; c < columns; c += PANEL)
            for (int q = 0; q < all_; q++, line += PANEL, out += PANEL) {
                const F peak = set(peaks_[q]), low = exponential(load(line) - peak), high = exponential(load(line + W) - peak);
                store(out, low);
                store(out + W, high);
                store(sums_ + q * W, load(sums_ + q * W) + low + high);
            }
    }

    void add(int begin, int end) {
        const int paired = std::is_same<Cell, bf16>::value ? round_up(end - begin, K_STEP) : end - begin;
        for (int first = 0; first < head_dim_; first += PANEL) {
            pair_values(values_ + (size_t)begin * head_dim_, head_dim_, first, end - begin, panel_);
            multiply(Lines<Cell>{weights_, PANEL, (size_t)all_ * PANEL}, all_, panel_, paired, [&](int q, F low, F high) {
                float* into = read_ + q * width_ + first;
                store(into, fma(load(into), set(shrink_[q]), low));
                store(into + W, fma(load(into + W), set(shrink_[q]), high));
            });
        }
    }

    const Cell *const queries_, *const keys_, *const values_;
    const uint8_t* const valid_;
    const int group_, head_dim_, count_, all_, width_, first_reads_;
    float *const scores_, *const most_, *const peaks_, *const sums_, *const shrink_, *const read_;
    Cell *const weights_, *const panel_;
};
