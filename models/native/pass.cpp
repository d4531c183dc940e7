// What Python calls: a network is opened with threads of its own, computes passes one at a time, and is closed.
#include "pass.h"

template <class Cell, class Weight>
static void work(Turn& turn, const void* job) {
    Worker<Cell, Weight>(turn, *static_cast<const Job*>(job)).run();
    release_tiles();
}

static Pool::Work choose_work(const Network& network) {
#if defined(__AVX512BF16__)
    if (network.bf16_cells) return work<bf16, bf16>;
#endif
    return network.bf16_weights ? work<float, bf16> : work<float, float>;
}

class Opened {
public:
    Opened(const Network& network, int threads)
        : network_(network), scratch_(threads),
          pool_(threads, PHASES * (network.layers + 1), choose_work(network), sizeof(Job)) {}

    void run(const Pass& pass) {
        grow(pass.tokens > pass.selected ? pass.tokens : pass.selected);
        cut(pass);
        Job job{&network_, space_, pass, blocks_.data(), (int)blocks_.size(), scratch_.data(), (int)scratch_.size()};
        pool_.run(&job);
    }

private:
    void grow(size_t tokens) {
        if (tokens <= room_) return;
        room_ = 0;  // until all is there
        const size_t room = tokens + tokens / 4;
        const size_t cell = network_.bf16_cells ? 2 : 4, dim = network_.head_dim;
        const size_t sizes[] = {4 * padded(network_.width), 4 * padded((network_.heads + 2 * network_.kv_heads) * dim),
                                cell * padded(network_.width), cell * network_.heads * dim,
                                cell * padded(network_.heads * dim), cell * padded(network_.inner)};
        size_t most = padded(network_.width), total = 0;
        for (size_t k : {padded(network_.heads * dim), padded(network_.inner)}) most = k > most ? k : most;
        levels_.resize(room * most);
        of_groups_.resize(2 * room * (most / GROUP));
        for (size_t size : sizes) total += aligned(size * room);
        memory_.assign(total + 64, 0);
        char* next = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
        void* parts[6];
        for (int i = 0; i < 6; next += aligned(sizes[i] * room), i++) parts[i] = next;
        space_ = {static_cast<float*>(parts[0]), static_cast<float*>(parts[1]), parts[2], parts[3], parts[4], parts[5],
                  {levels_.data(), of_groups_.data(), of_groups_.data() + of_groups_.size() / 2}};
        room_ = room;
    }

    static size_t padded(size_t n) { return round_up((int)n, PANEL); }
    static size_t aligned(size_t n) { return (n + 63) / 64 * 64; }

    void cut(const Pass& pass) {
        const int most = QUERIES / (network_.heads / network_.kv_heads);
        blocks_.clear();
        for (int t = 0; t < pass.tokens; t++) {
            Block* last = blocks_.empty() ? nullptr : &blocks_.back();
            const bool goes_on = last && last->count < most && pass.row[t] == pass.row[t - 1] && pass.column[t] == pass.column[t - 1] + 1;
            if (goes_on) last->count++;
            else blocks_.push_back({t, 1});
        }
    }

    const Network network_;
    std::vector<Scratch> scratch_;
    std::vector<char> memory_;
    std::vector<int8_t> levels_;
    std::vector<float> of_groups_;
    std::vector<Block> blocks_;
    Workspace space_{};
    size_t room_ = 0;
    Pool pool_;
};

extern "C" {
// Sizes of the structures, so that a library of another version is known as one.
int64_t lengthwise_sizes() { return ((int64_t)sizeof(Network) * 1000 + sizeof(Layer)) * 1000 + sizeof(Pass); }
int32_t lengthwise_lanes() { return W; }
// To be called first: whether the system lets this process run the build.
int32_t lengthwise_permitted() { return request_tiles(); }
int32_t lengthwise_multiplies_levels() {
#if defined(__AVX512VNNI__)
    return 1;
#else
    return 0;
#endif
}
// Null, and a code that is not 0, tell of a lack of memory or threads; passes after it are as if it had not been.
void* lengthwise_open(const Network* network, int32_t threads) {
    try {
        return new Opened(*network, threads);
    } catch (...) {
        return nullptr;
    }
}
int32_t lengthwise_run(void* opened, const Pass* pass) {
    try {
        static_cast<Opened*>(opened)->run(*pass);
        return 0;
    } catch (...) {
        return 1;
    }
}
void lengthwise_close(void* opened) { delete static_cast<Opened*>(opened); }
}
