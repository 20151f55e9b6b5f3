/* What one core can do at most: instructions on registers alone, nothing loaded, nothing kept.
 *
 * Each function returns nanoseconds for one instruction, the fastest of many short turns. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

#define TURNS 2000
#define STEPS 2000

/* vpopcntq on 512 bits: eight words of 64 bits. */
__attribute__((target("avx512f,avx512vpopcntdq"))) double peak_avx512(void) {
    double best = 1e9;
    for (int turn = 0; turn < TURNS; turn++) {
        __m512i v[8];
        for (int i = 0; i < 8; i++) v[i] = _mm512_set1_epi64(turn + i);
        double start = now();
        for (int step = 0; step < STEPS; step++) {
            for (int i = 0; i < 8; i++) v[i] = _mm512_popcnt_epi64(v[i]);
            __asm__ volatile(""
                             : "+v"(v[0]), "+v"(v[1]), "+v"(v[2]), "+v"(v[3]), "+v"(v[4]), "+v"(v[5]), "+v"(v[6]),
                               "+v"(v[7]));
        }
        double each = (now() - start) / (8.0 * STEPS);
        if (each < best) best = each;
    }
    return best;
}

/* popcnt on 64 bits: one word. */
__attribute__((target("popcnt"))) double peak_scalar(void) {
    double best = 1e9;
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t v[8];
        for (int i = 0; i < 8; i++) v[i] = (uint64_t)(turn + i);
        double start = now();
        for (int step = 0; step < STEPS; step++) {
            for (int i = 0; i < 8; i++) v[i] = (uint64_t)__builtin_popcountll(v[i]);
            __asm__ volatile(""
                             : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3]), "+r"(v[4]), "+r"(v[5]), "+r"(v[6]),
                               "+r"(v[7]));
        }
        double each = (now() - start) / (8.0 * STEPS);
        if (each < best) best = each;
    }
    return best;
}

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TILES = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

/* tdpbusd on tiles of 16 x 64 bytes: 16384 products. The caller has the permission to use tiles. */
__attribute__((target("amx-tile,amx-int8"))) double peak_amx(void) {
    double best = 1e9;
    _tile_loadconfig(&TILES);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int turn = 0; turn < TURNS; turn++) {
        double start = now();
        for (int step = 0; step < STEPS / 8; step++) {
            _tile_dpbusd(0, 4, 5);
            _tile_dpbusd(1, 4, 5);
            _tile_dpbusd(2, 4, 5);
            _tile_dpbusd(3, 4, 5);
        }
        double each = (now() - start) / (4.0 * (STEPS / 8));
        if (each < best) best = each;
    }
    _tile_release();
    return best;
}

/* A chain of multiplications, three cycles each: nanoseconds of a cycle. */
double cycle(void) {
    double best = 1e9;
    for (int turn = 0; turn < TURNS; turn++) {
        uint64_t x = 3;
        double start = now();
        for (int step = 0; step < STEPS; step++)
            __asm__ volatile("imul %0, %0\n\timul %0, %0\n\timul %0, %0\n\timul %0, %0\n\t" : "+r"(x));
        double each = (now() - start) / (12.0 * STEPS);
        if (each < best) best = each;
    }
    return best;
}
