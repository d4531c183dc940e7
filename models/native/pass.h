// The forward pass of a Llama-shaped network in one call: see models/network/decoder for the same pass in torch.
//
// Every token of a pass belongs to a row and has a column of its row's K and V; tokens of one row are consecutive. Decode
// steps, chunks of prompts and both at once are the same to it. Of norms: x / hypot(|x|, offset) * weight, the factor
// sqrt(width) being part of the weight.
#pragma once
#include <cmath>
#include <cstdlib>
#include "attention.h"
#include "levels.h"
#include "pool.h"

constexpr int QUERIES = 96;    // that one item of attention has at most: K and V are turned once for all of them
constexpr int TOKENS = 512;    // that one item of a product has at most, and where items are few
constexpr int FEW_TOKENS = 128;
constexpr int PHASES = 11;     // of a layer, and of what is around the layers, at most

extern "C" {
// A matrix (outputs, k) as panels of PANEL outputs, padded with zeros. Rows of gate and up alternate by W.
struct Matrix {
    const void* weight;
    const float* bias;   // [padded outputs] or null
    const void* scales;  // of a weight in 8 bits: float32 [padded outputs]; in 4: see levels.h
    int32_t outputs, k;  // both padded
    int32_t bits;        // 8, 4, or 0 for the network's type of weights
};
struct Layer {
    Matrix qkv, out, gate_up, down;
    const float *before, *between;  // norms' weights
    const float* head_norm;         // [heads + kv_heads][head_dim] or null
    int32_t turns;                  // whether positions turn queries and keys
};
struct Network {
    int32_t layers, width, heads, kv_heads, head_dim, inner, vocabulary;
    int32_t bf16_cells, bf16_weights;  // whether K, V and activations are bfloat16; whether weights are
    float offset, head_offset, attention_scale, embedding_scale, logits_scale;
    const Layer* layer;
    Matrix head;
    const void* embeddings;  // [vocabulary][width], in the weights' type
    const float* norm;
    const float* rotations;  // [positions][cos of half a head | sin of half a head]
};
struct Pass {
    int32_t tokens, selected;
    const int32_t *token, *position, *row, *column;  // [tokens]
    const int32_t* begin;     // [rows]: the first column that a row reads
    const uint8_t* valid;     // [rows][valid_stride], a byte a column, or null where all from `begin` on may be read
    int64_t valid_stride;
    void *keys, *values;      // of row 0, layer 0, head 0, column 0
    int64_t layer_stride, row_stride, head_stride;  // in numbers; columns are head_dim apart
    const int32_t* select;    // [selected] tokens whose logits are wanted
    float* logits;            // [selected][logits_stride]
    int64_t logits_stride;    // at least the vocabulary, padded
};
}

struct Block {  // consecutive tokens of one row
    int first, count;
};

// Memory that a pass computes in, by tokens; zero where numbers are padding.
struct Workspace {
    float *hidden, *qkv;
    void *normed, *queries, *read, *inner;
    Levels levels;  // of what is multiplied next, where weights are in few bits
};

struct Job {
    const Network* network;
    Workspace space;
    Pass pass;
    const Block* blocks;
    int block_count;
    Scratch* scratch;  // one a thread
    int threads;
};

// Sums of squares, and what a norm makes of them: both in vectors with a rest of single numbers.
inline float norm_factor(const float* x, int n, float offset) {
    F sum = set(0.f);
    int i = 0;
    for (; i + W <= n; i += W) sum = fma(load(x + i), load(x + i), sum);
    float rest = 0;
    for (; i < n; i++) rest += x[i] * x[i];
    return 1.f / std::sqrt(sum_of(sum) + rest + offset * offset);
}

template <class Cell>
void normalize(const float* x, int n, float offset, const float* weight, Cell* out) {
    const float factor = norm_factor(x, n, offset);
    int i = 0;
    for (; i + W <= n; i += W) store(out + i, load(x + i) * set(factor) * load(weight + i));
    for (; i < n; i++) narrow(x[i] * factor * weight[i], out + i);
}

template <class Cell, class Weight>
class Worker {
public:
    Worker(Turn& turn, const Job& job)
        : turn_(turn), job_(job), net_(*job.network), pass_(job.pass), space_(job.space),
          width_(round_up(net_.width, PANEL)), heads_(net_.heads + 2 * net_.kv_heads),
          qkv_(round_up(heads_ * net_.head_dim, PANEL)), read_(round_up(net_.heads * net_.head_dim, PANEL)),
          inner_(round_up(net_.inner, PANEL)) {}

    void run() {
        turn_.share(pass_.tokens, [&](int t) { embed(t); });
        for (int l = 0; l < net_.layers; l++) {
            const Layer& layer = net_.layer[l];
            norms(layer.before, layer.qkv);
            product(layer.qkv, normed(), width_, pass_.tokens, [&](const Matrix& m, int t, int n, F low, F high) {
                write(space_.qkv + (size_t)t * qkv_ + n, m, n, low, high);
            });
            turn_.share(pass_.tokens, [&](int t) { place(t, l, layer); });
            turn_.share(job_.block_count * net_.kv_heads, [&](int i) {
                i = job_.block_count * net_.kv_heads - 1 - i;  // the longest first
                read(job_.blocks[i / net_.kv_heads], i % net_.kv_heads, l);
            });
            auto add = [&](const Matrix& m, int t, int n, F low, F high) {
                float* out = space_.hidden + (size_t)t * width_ + n;
                write(out, m, n, low + load(out), high + load(out + W));
            };
            round_off(layer.out, static_cast<const Cell*>(space_.read), read_);
            product(layer.out, static_cast<const Cell*>(space_.read), read_, pass_.tokens, add);
            norms(layer.between, layer.gate_up);
            product(layer.gate_up, normed(), width_, pass_.tokens, [&](const Matrix& m, int t, int n, F gate, F up) {
                if (m.bias) gate = gate + load(m.bias + n), up = up + load(m.bias + n + W);
                F silu = gate / (set(1.f) + exponential(set(0.f) - gate));
                store(static_cast<Cell*>(space_.inner) + (size_t)t * inner_ + n / 2, silu * up);
            });
            round_off(layer.down, static_cast<const Cell*>(space_.inner), inner_);
            product(layer.down, static_cast<const Cell*>(space_.inner), inner_, pass_.tokens, add);
        }
        turn_.share(pass_.selected, [&](int i) {
            const float* x = space_.hidden + (size_t)pass_.select[i] * width_;
            normalize(x, net_.width, net_.offset, net_.norm, normed() + (size_t)i * width_);
            round_one(net_.head, i, normed(), width_);
        });
        product(net_.head, normed(), width_, pass_.selected, [&](const Matrix& m, int i, int n, F low, F high) {
            F scale = set(net_.logits_scale);
            write(pass_.logits + (size_t)i * pass_.logits_stride + n, m, n, low * scale, high * scale);
        });
    }

private:
    Cell* normed() const { return static_cast<Cell*>(space_.normed); }

    static void write(float* out, const Matrix& m, int n, F low, F high) {
        if (m.bias) low = low + load(m.bias + n), high = high + load(m.bias + n + W);
        store(out, low);
        store(out + W, high);
    }

    void embed(int t) {
        const uint32_t token = pass_.token[t], known = token < (uint32_t)net_.vocabulary;  // others are read as zeros
        const auto* line = static_cast<const Weight*>(net_.embeddings) + (known ? (size_t)token * net_.width : 0);
        float* out = space_.hidden + (size_t)t * width_;
        for (int i = 0; i < net_.width; i++) out[i] = known ? widen(line[i]) * net_.embedding_scale : 0;
    }

    void norms(const float* weight, const Matrix& next) {
        turn_.share(pass_.tokens, [&](int t) {
            normalize(space_.hidden + (size_t)t * width_, net_.width, net_.offset, weight, normed() + (size_t)t * width_);
            round_one(next, t, normed(), width_);
        });
    }

    // A token's numbers in 8 bits, where a matrix in few bits is multiplied with them.
    void round_one(const Matrix& m, int t, const Cell* x, int width) {
#if defined(__AVX512VNNI__)
        if (m.bits) round_to_levels(x + (size_t)t * width, width, space_.levels.from(t, width));
#endif
    }

    void round_off(const Matrix& m, const Cell* x, int width) {
        if (m.bits) turn_.share(pass_.tokens, [&](int t) { round_one(m, t, x, width); });
    }

    // One panel, and some of the tokens, an item.
    template <class Put>
    void product(const Matrix& m, const Cell* x, size_t stride, int tokens, const Put& put) {
        const int panels = m.outputs / PANEL, most = panels < 4 * job_.threads ? FEW_TOKENS : TOKENS;
        const int parts = (tokens + most - 1) / most;
        turn_.share(panels * parts, [&](int i) {
            const int panel = i % panels, first = i / panels * most;
            const int count = tokens - first < most ? tokens - first : most;
            auto take = [&](int t, F low, F high) { put(m, first + t, panel * PANEL, low, high); };
            if (m.bits) return multiply_in_few_bits(m, panel, first, count, take);
            const auto* w = static_cast<const Weight*>(m.weight) + (size_t)panel * PANEL * m.k;
            multiply(Lines<Cell>{x + first * stride, stride}, count, w, m.k, take);
        });
    }

    template <class Take>
    void multiply_in_few_bits(const Matrix& m, int panel, int first, int count, const Take& take) {
#if defined(__AVX512VNNI__)
        const Levels x = space_.levels.from(first, m.k);
        const auto* w = static_cast<const uint8_t*>(m.weight) + (size_t)panel * PANEL * m.k * m.bits / 8;
        if (m.bits == 4) {
            const auto* scales = static_cast<const bf16*>(m.scales) + (size_t)panel * PANEL * 2 * (m.k / GROUP);
            return multiply_levels<4>(x, count, w, scales, m.k, take);
        }
        const auto* scales = static_cast<const float*>(m.scales) + (size_t)panel * PANEL;
        multiply_levels<8>(x, count, w, nullptr, m.k, [&](int t, F low, F high) { take(t, low * load(scales), high * load(scales + W)); });
#endif
    }

    // Where K or V of a row's head begins.
    Cell* cells(void* buffer, int row, int head, int layer) const {
        return static_cast<Cell*>(buffer) + layer * pass_.layer_stride + row * pass_.row_stride + head * pass_.head_stride;
    }

    // Turn a token's queries and keys to its position; K and V go to their column.
    void place(int t, int l, const Layer& layer) {
        const int dim = net_.head_dim, half = dim / 2, row = pass_.row[t], column = pass_.column[t];
        const float *cos = net_.rotations + (size_t)pass_.position[t] * dim, *sin = cos + half;
        float* head = space_.qkv + (size_t)t * qkv_;
        auto* queries = static_cast<Cell*>(space_.queries) + (size_t)t * net_.heads * dim;
        for (int h = 0; h < heads_; h++, head += dim) {
            if (h < net_.heads + net_.kv_heads) {
                if (layer.head_norm) normalize(head, dim, net_.head_offset, layer.head_norm + (size_t)h * dim, head);
                if (layer.turns)
                    for (int i = 0; i < half; i++) {
                        const float a = head[i], b = head[half + i];
                        head[i] = a * cos[i] - b * sin[i];
                        head[half + i] = b * cos[i] + a * sin[i];
                    }
            }
            if (h < net_.heads) {
                for (int i = 0; i < dim; i++) narrow(head[i] * net_.attention_scale, queries + (size_t)h * dim + i);
            } else {
                const bool key = h < net_.heads + net_.kv_heads;
                const int kv_head = h - net_.heads - (key ? 0 : net_.kv_heads);
                Cell* out = cells(key ? pass_.keys : pass_.values, row, kv_head, l) + (size_t)column * dim;
                for (int i = 0; i < dim; i++) narrow(head[i], out + i);
            }
        }
    }

    void read(const Block& block, int kv_head, int l) {
        const int dim = net_.head_dim, group = net_.heads / net_.kv_heads, row = pass_.row[block.first];
        const int begin = pass_.begin[row], count = pass_.column[block.first] + block.count - begin;
        Scratch& scratch = job_.scratch[turn_.thread];
        Cell* queries = room<Cell>(scratch.queries, (size_t)block.count * group * dim);
        for (int i = 0; i < block.count; i++) {
            const size_t from = ((size_t)(block.first + i) * net_.heads + kv_head * group) * dim;
            std::memcpy(queries + (size_t)i * group * dim, static_cast<Cell*>(space_.queries) + from, group * dim * sizeof(Cell));
        }
        const size_t from = (size_t)begin * dim;
        Attention<Cell> attention(queries, block.count, group, dim, cells(pass_.keys, row, kv_head, l) + from,
                                  cells(pass_.values, row, kv_head, l) + from,
                                  pass_.valid ? pass_.valid + row * pass_.valid_stride + begin : nullptr, count, scratch);
        attention.run([&](int q, int first, F low, F high) {
            const int t = block.first + q / group, head = kv_head * group + q % group;
            Cell* out = static_cast<Cell*>(space_.read) + (size_t)t * read_ + head * dim + first;
            const int left = dim - first;
            if (left >= PANEL) {
                store(out, low);
                store(out + W, high);
            } else {
                float numbers[PANEL];
                store(numbers, low);
                store(numbers + W, high);
                for (int i = 0; i < left; i++) narrow(numbers[i], out + i);
            }
        });
    }

    Turn& turn_;
    const Job& job_;
    const Network& net_;
    const Pass& pass_;
    const Workspace& space_;
    const int width_, heads_, qkv_, read_, inner_;
};
