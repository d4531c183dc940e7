// Products of bfloat16 by tiles of AMX, 32 tokens with 32 outputs at a time; a panel of weights is read as it lies:
//
//     tiles 0 1    sums of tokens 0..15 with both halves of the panel, [token][W] float32
//     tiles 2 3    those of tokens 16..31
//     tiles 4 5    x of either 16 tokens, [token][K_TILE]
//     tiles 6 7    either half of the panel, [k / 2][W][2]
//
// Tokens that are not there are no rows of a tile. Each row is multiplied alone and in one order of k.
#pragma once
#include "product.h"

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>

constexpr int K_TILE = 32;  // numbers of k in a tile, as in a panel
constexpr int K_STEP = K_TILE;  // of bfloat16 that are multiplied at once
constexpr int TILE_TOKENS = 16;
constexpr int TAKEN = 256;  // tokens whose sums are kept before they are taken

// Linux gives a process tiles on request (arch_prctl(2)); false where it has none.
inline bool request_tiles() {
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}
inline thread_local int configured = 0;  // tokens that the thread's tiles are set to
inline void release_tiles() {
    _tile_release();
    configured = 0;
}

// gcc does not know that tiles are read from memory: what was written before is there after this.
inline void written_for_tiles(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

inline void configure_tiles(int tokens) {
    if (tokens == configured) return;
    configured = tokens;
    struct alignas(64) {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {};  // of a row
        uint8_t rows[16] = {};
    } config;
    const uint8_t first = tokens < TILE_TOKENS ? tokens : TILE_TOKENS, second = tokens - first;
    const uint8_t rows[8] = {first, first, second, second, first, second, K_TILE / 2, K_TILE / 2};
    for (int i = 0; i < 8; i++) config.rows[i] = rows[i], config.bytes[i] = rows[i] ? 64 : 0;
    written_for_tiles(&config);
    _tile_loadconfig(&config);
}

// TWICE: whether there are more than TILE_TOKENS of them.
template <bool TWICE>
inline void multiply_tiles(const Lines<bf16>& x, const bf16* w, int k, bool fetch, float (*sums)[PANEL]) {
    _tile_zero(0);
    _tile_zero(1);
    if (TWICE) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int i = 0; i < k; i += K_TILE, w += K_TILE * PANEL) {
        if (fetch)
#pragma GCC unroll 32
            for (int line = 0; line < 32; line++) _mm_prefetch((const char*)w + AHEAD + 64 * line, _MM_HINT_T0);
        _tile_loadd(6, w, 4 * PANEL);
        _tile_loadd(7, w + PANEL, 4 * PANEL);
        _tile_loadd(4, x.at(i), 2 * x.stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (TWICE) {
            _tile_loadd(5, x.at(i) + TILE_TOKENS * x.stride, 2 * x.stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], 4 * PANEL);
    _tile_stored(1, sums[0] + W, 4 * PANEL);
    if (TWICE) {
        _tile_stored(2, sums[TILE_TOKENS], 4 * PANEL);
        _tile_stored(3, sums[TILE_TOKENS] + W, 4 * PANEL);
    }
}

// As `multiply` of product.h, which computes what ends within a tile. Sums are taken when all are there: who takes those of
// 32 tokens at once waits for the tiles.
template <class Take>
inline void multiply(const Lines<bf16>& x, int count, const bf16* w, int k, const Take& take) {
    if (k % K_TILE) return multiply<bf16, bf16, Take>(x, count, w, k, take);
    written_for_tiles(x.first);
    alignas(64) float sums[TAKEN][PANEL];
    for (int done = 0; done < count; done += TAKEN) {
        const int some = count - done < TAKEN ? count - done : TAKEN;
        for (int m = 0; m < some; m += 2 * TILE_TOKENS) {
            const int left = some - m < 2 * TILE_TOKENS ? some - m : 2 * TILE_TOKENS;
            configure_tiles(left);
            const Lines<bf16> from = x.from(done + m);
            left > TILE_TOKENS ? multiply_tiles<true>(from, w, k, m == 0, sums + m) : multiply_tiles<false>(from, w, k, m == 0, sums + m);
        }
        for (int m = 0; m < some; m++) take(done + m, load(sums[m]), load(sums[m] + W));
    }
}
#else
constexpr int K_STEP = 2;

inline bool request_tiles() { return true; }
inline void release_tiles() {}
#endif
