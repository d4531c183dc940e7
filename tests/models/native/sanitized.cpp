// Random networks, batches and threads through the compiled pass, in buffers of exactly the size that it may touch: for the
// address, undefined-behaviour and thread sanitizers. Cells in front of a row's first column are NaN, and never read.
#include "models/native/pass.cpp"
#include <array>
#include <cstdio>
#include <limits>
#include <random>

static std::mt19937 random_bits(0);
static int draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_bits); }

// Keeps every buffer of a case; `narrowed` ones are bfloat16.
struct Buffers {
    std::vector<std::vector<char>> kept;

    void* bytes(size_t count) { return kept.emplace_back(count).data(); }
    float* floats(size_t count, float scale = 0.1f) {
        auto* out = static_cast<float*>(bytes(4 * count));
        for (size_t i = 0; i < count; i++) out[i] = scale * draw(-100, 100) / 100.f;
        return out;
    }
    void* numbers(size_t count, bool narrowed) {
        if (!narrowed) return floats(count);
        auto* out = static_cast<bf16*>(bytes(2 * count));
        for (size_t i = 0; i < count; i++) narrow(0.1f * draw(-100, 100) / 100.f, out + i);
        return out;
    }
    int32_t* integers(size_t count) { return static_cast<int32_t*>(bytes(4 * count)); }
};

static Matrix draw_matrix(Buffers& buffers, int outputs, int k, bool narrowed, int bits) {
    outputs = round_up(outputs, PANEL), k = round_up(k, PANEL);
    const size_t all = (size_t)outputs * k;
    const float* bias = draw(0, 1) ? buffers.floats(outputs) : nullptr;
    if (!bits) return {buffers.numbers(all, narrowed), bias, nullptr, outputs, k, 0};
    auto* levels = static_cast<uint8_t*>(buffers.bytes(all * bits / 8));
    for (size_t i = 0; i < all * bits / 8; i++) levels[i] = draw(0, 255);
    const void* scales = bits == 8 ? buffers.floats(outputs, 0.001f) : buffers.numbers((size_t)outputs * (k / GROUP) * 2, true);
    return {levels, bias, scales, outputs, k, bits};
}

struct Case {
    static constexpr int POSITIONS = 90;
    Buffers buffers;
    Network network{};
    std::vector<Layer> layers;

    Case() : layers(draw(1, 2)) {
        Network& n = network;
        n.layers = layers.size(), n.width = draw(1, 90), n.head_dim = 2 * draw(1, 40), n.inner = draw(1, 120);
        n.kv_heads = draw(1, 3), n.heads = n.kv_heads * draw(1, 4), n.vocabulary = draw(2, 90);
#if defined(__AVX512BF16__)
        n.bf16_cells = draw(0, 1);
#endif
        n.bf16_weights = n.bf16_cells || draw(0, 1);
        n.offset = n.head_offset = 0.01f, n.attention_scale = 0.3f, n.embedding_scale = n.logits_scale = 1;
        const int of_heads = n.heads * n.head_dim, all = (n.heads + 2 * n.kv_heads) * n.head_dim;
        const int few[] = {0, 8, 4}, bits = lengthwise_multiplies_levels() ? few[draw(0, 2)] : 0;
        for (Layer& layer : layers) {
            layer.qkv = draw_matrix(buffers, all, n.width, n.bf16_weights, bits);
            layer.out = draw_matrix(buffers, n.width, of_heads, n.bf16_weights, bits);
            layer.gate_up = draw_matrix(buffers, 2 * round_up(n.inner, PANEL), n.width, n.bf16_weights, bits);
            layer.down = draw_matrix(buffers, n.width, n.inner, n.bf16_weights, bits);
            layer.before = buffers.floats(n.width), layer.between = buffers.floats(n.width);
            layer.head_norm = draw(0, 1) ? buffers.floats((n.heads + n.kv_heads) * n.head_dim) : nullptr;
            layer.turns = draw(0, 1);
        }
        n.layer = layers.data(), n.head = draw_matrix(buffers, n.vocabulary, n.width, n.bf16_weights, bits ? 8 : 0);
        n.embeddings = buffers.numbers((size_t)n.vocabulary * n.width, n.bf16_weights);
        n.norm = buffers.floats(n.width), n.rotations = buffers.floats((size_t)POSITIONS * n.head_dim);
    }

    // K or V of [layers][rows][kv_heads][columns][head_dim]: NaN in front of a row's first column.
    void* draw_cells(int rows, int columns, const int32_t* begin) {
        const size_t dim = network.head_dim, lines = (size_t)network.layers * rows * network.kv_heads * columns;
        void* cells = buffers.numbers(lines * dim, network.bf16_cells);
        for (size_t line = 0; line < lines; line++) {
            const int row = line / columns / network.kv_heads % rows, column = line % columns;
            if (column >= begin[row]) continue;
            for (size_t i = line * dim; i < (line + 1) * dim; i++)
                if (network.bf16_cells) static_cast<bf16*>(cells)[i] = 0x7fc0;
                else static_cast<float*>(cells)[i] = std::numeric_limits<float>::quiet_NaN();
        }
        return cells;
    }

    Pass draw_pass() {
        const int rows = draw(1, 5), columns = draw(1, 80);
        std::vector<std::array<int, 3>> tokens;  // row, column, first column of its row
        int32_t* begin = buffers.integers(rows);
        for (int row = 0; row < rows; row++) {
            const int first = draw(0, columns - 1), count = draw(row ? 0 : 1, draw(0, 1) ? columns - first : 1);
            begin[row] = draw(0, first);
            for (int column = first; column < first + count; column++) tokens.push_back({row, column, begin[row]});
        }
        const int count = tokens.size();
        int32_t *token = buffers.integers(count), *position = buffers.integers(count), *row = buffers.integers(count);
        int32_t* column = buffers.integers(count);
        for (int t = 0; t < count; t++) {
            row[t] = tokens[t][0], column[t] = tokens[t][1], position[t] = tokens[t][1] - tokens[t][2];
            token[t] = draw(-1, network.vocabulary);  // the first and the last are no tokens
        }
        const int selected = draw(1, count);
        int32_t* select = buffers.integers(selected);
        for (int i = 0; i < selected; i++) select[i] = draw(0, count - 1);
        uint8_t* valid = nullptr;
        if (draw(0, 1)) {
            valid = static_cast<uint8_t*>(buffers.bytes((size_t)rows * columns));
            for (int i = 0; i < rows * columns; i++) valid[i] = draw(0, 3) > 0;
        }
        const int64_t head = (int64_t)columns * network.head_dim, of_row = head * network.kv_heads;
        const int padded = round_up(network.vocabulary, PANEL);
        void *keys = draw_cells(rows, columns, begin), *values = draw_cells(rows, columns, begin);
        return {count, selected, token, position, row, column, begin, valid, columns, keys, values,
                of_row * rows, of_row, head, select, buffers.floats((size_t)selected * padded), padded};
    }
};

int main(int, char** arguments) {
    if (!lengthwise_permitted()) return 1;
    for (int i = 0, cases = std::atoi(arguments[1]); i < cases; i++) {
        Case one;
        void* opened[] = {lengthwise_open(&one.network, 1), lengthwise_open(&one.network, draw(2, 3))};
        for (int passes = draw(1, 6); passes > 0; passes--) {
            Pass pass = one.draw_pass();
            const size_t logits = (size_t)pass.selected * pass.logits_stride;
            if (lengthwise_run(opened[0], &pass)) return 1;
            const std::vector<float> alone(pass.logits, pass.logits + logits);
            for (int again = 0; again < 3; again++) if (lengthwise_run(opened[1], &pass)) return 1;
            for (size_t j = 0; j < logits; j++) {
                const bool shown = (int64_t)j % pass.logits_stride < one.network.vocabulary;
                if (!shown || (std::isfinite(alone[j]) && alone[j] == pass.logits[j])) continue;
                std::printf("case %d: logit %zu is %g with one thread, %g with more\n", i, j, alone[j], pass.logits[j]);
                return 1;
            }
        }
        for (void* each : opened) lengthwise_close(each);
    }
}
