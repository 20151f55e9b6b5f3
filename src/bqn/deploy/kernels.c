/* The integer operations of a packed network, for several instruction sets in one file, chosen at run time.
 *
 * A plan (made by _plan.py and _layout.py, run by _native.py) is a list of operations on values. Values of one image lie in an arena:
 *   codes     (H, W, planes, words) of uint64, channel c is bit c % 64 of word c / 64; unused bits are zero
 *   integers  (H, W, C) of int32
 *   pixels    (C, H, W) of uint8, as they came
 * Images go through the whole plan in chunks, so that what one operation writes is in the cache when the next reads it;
 * threads divide the images. Nothing is allocated here: the caller brings the arena, of the size that the plan asks
 * for.
 *
 * Sums are made modulo 2^32; a plan is only made where the results themselves fit an int32. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(BQN_PORTABLE)
#define X86 1
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define LANES 16     /* output channels that are computed together */
#define POSITIONS 8  /* output positions that are computed together */
#define BLOCK 256    /* positions whose sums are kept before they are finished */
#define TILE_ROWS 16 /* AMX: positions of a tile */

enum { PACK, PRODUCT, THRESHOLD, ENCODE, DECODE, SUM_POOL, MAX_POOL, OR_POOL, ADD, FLATTEN };
enum { XOR, AND, BYTES, TILES };
enum { PORTABLE, NEON, AVX2, AVX512, AMX };

typedef struct {
    int32_t kind, mode;
    int32_t source, second, target;                               /* values; second: selector or other summand, or -1 */
    int32_t height, width, channels, planes;                      /* of the source */
    int32_t out_height, out_width, out_channels, out_planes;      /* of the target, pooled where pooling is fused */
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w; /* of the product or the pooling */
    int32_t groups, block;                                        /* block: images prepared together */
    int32_t pool_h, pool_w, rows, columns, pitch;                 /* of the sums before the fused pooling */
    int32_t pixel_bytes, plane_bytes, row_step, column_step;      /* where a position reads, in bytes */
    int32_t padded_height, padded_width, direct;                  /* direct: no copy, the source itself is read */
    int32_t dilation_h, dilation_w, patch_bytes, unused;          /* patch_bytes: windows are copied out, if not zero */
    int32_t length, scale, code_scale;                            /* sums to integers: constant + scale * sum + ... */
    int32_t levels, low, step, factor_a, factor_b;
    int32_t weight_planes, raw, one_bit; /* raw: the source is pixels; one_bit: see below */
    int64_t image_bytes;                 /* of a prepared image */
    const int32_t *offsets;              /* (length,) bytes */
    const void *weights;      /* (groups, lane blocks, weight_planes, length, LANES) words; where one_bit, each byte of
                               * these is a bit, 0 for `low` and 1 for `low + step` */
    const int32_t *constants; /* (groups, lane blocks, classes, LANES), where integers are stored */
    const int32_t *classes;   /* (out_height * out_width,) */
    const int32_t *thresholds; /* (groups, lane blocks, classes, levels - 1, LANES); code: #{sum ^ flip > threshold} */
    const int32_t *flips; /* (groups, lane blocks, LANES) 0 or -1 */
    int64_t class_count;
} bqn_op;

typedef struct {
    int64_t offset; /* in the arena, per image of a chunk; negative: the input (-1) or the output (-2) */
    int64_t bytes;  /* of one image */
} bqn_value;

typedef struct {
    const bqn_op *ops;
    const bqn_value *values;
    int64_t count;                     /* operations */
    int64_t chunk;                     /* images at a time */
    int64_t values_bytes, arena_bytes; /* all values of a chunk; and with the scratch behind them */
} bqn_plan;

size_t bqn_op_size(void) { return sizeof(bqn_op); }

/* ---- Inner products: POSITIONS x LANES sums at a time ------------------------------------------------------------
 *
 * `at[p] + offsets[k]` is where position p reads its k-th word of 32 bits, `weights` is [length][LANES] words and
 * `sums` [POSITIONS][LANES]. A word holds 32 one-bit codes (XOR, AND), or four codes of a byte and four signed weights
 * (BYTES).
 *
 * Bits are counted two words at a time. With s the ones that are left over, y = s ^ x1 and z = y ^ x2 for products
 * x1 and x2, the carry of s + x1 + x2 is a function of s, y and z: a pair of words takes three three-input
 * operations, one population count and one addition, where counting them singly takes six. */

typedef void inner_fn(const uint8_t *const *at, int positions, const int32_t *offsets, int length,
                      const uint32_t *weights, int32_t *sums);

static inline uint32_t word_at(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static inline uint32_t count_bits(uint32_t v) {
    v -= (v >> 1) & 0x55555555u;
    v = (v & 0x33333333u) + ((v >> 2) & 0x33333333u);
    return (((v + (v >> 4)) & 0x0f0f0f0fu) * 0x01010101u) >> 24;
}

/* One position; `both` is known at compile time: AND, otherwise XOR. */
static inline void portable_bits(const uint8_t *at, const int32_t *offsets, int length, const uint32_t *weights,
                                 int32_t *sums, int both) {
    uint32_t left[LANES] = {0}, pairs[LANES] = {0};
    int k = 0;
    for (; k + 1 < length; k += 2) {
        uint32_t a = word_at(at + offsets[k]), b = word_at(at + offsets[k + 1]);
        const uint32_t *w = weights + (size_t)k * LANES, *v = w + LANES;
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t x = both ? a & w[lane] : a ^ w[lane];
            uint32_t y = both ? b & v[lane] : b ^ v[lane];
            uint32_t half = left[lane] ^ x;
            pairs[lane] += count_bits((left[lane] & x) | (half & y));
            left[lane] = half ^ y;
        }
    }
    uint32_t last = k < length ? word_at(at + offsets[k]) : 0;
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t w = k < length ? weights[(size_t)k * LANES + lane] : 0;
        sums[lane] = (int32_t)(2 * pairs[lane] + count_bits(left[lane]) + count_bits(both ? last & w : last ^ w));
    }
}

static void xor_portable(const uint8_t *const *at, int positions, const int32_t *offsets, int length,
                         const uint32_t *weights, int32_t *sums) {
    for (int p = 0; p < positions; p++) portable_bits(at[p], offsets, length, weights, sums + p * LANES, 0);
}

static void and_portable(const uint8_t *const *at, int positions, const int32_t *offsets, int length,
                         const uint32_t *weights, int32_t *sums) {
    for (int p = 0; p < positions; p++) portable_bits(at[p], offsets, length, weights, sums + p * LANES, 1);
}

static void bytes_portable(const uint8_t *const *at, int positions, const int32_t *offsets, int length,
                           const uint32_t *weights, int32_t *sums) {
    for (int p = 0; p < positions; p++) {
        int32_t total[LANES] = {0};
        for (int k = 0; k < length; k++) {
            const uint8_t *a = at[p] + offsets[k];
            const int8_t *w = (const int8_t *)(weights + (size_t)k * LANES);
            for (int lane = 0; lane < LANES; lane++)
                for (int i = 0; i < 4; i++) total[lane] += a[i] * w[4 * lane + i];
        }
        memcpy(sums + p * LANES, total, sizeof total);
    }
}

#if !defined(X86) && defined(__ARM_NEON)
#define NEON_BITS(NAME, OPERATION)                                                                            \
    static void NAME(const uint8_t *const *at, int positions, const int32_t *offsets, int length,             \
                     const uint32_t *weights, int32_t *sums) {                                                \
        for (int p = 0; p < positions; p++) {                                                                 \
            uint32x4_t total[4] = {vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0)};           \
            for (int k = 0; k < length; k++) {                                                                \
                uint32x4_t a = vdupq_n_u32(word_at(at[p] + offsets[k]));                                      \
                for (int i = 0; i < 4; i++) {                                                                 \
                    uint32x4_t x = OPERATION(a, vld1q_u32(weights + (size_t)k * LANES + 4 * i));              \
                    total[i] = vpadalq_u16(total[i], vpaddlq_u8(vcntq_u8(vreinterpretq_u8_u32(x))));          \
                }                                                                                             \
            }                                                                                                 \
            for (int i = 0; i < 4; i++) vst1q_s32(sums + p * LANES + 4 * i, vreinterpretq_s32_u32(total[i])); \
        }                                                                                                     \
    }
NEON_BITS(xor_neon, veorq_u32)
NEON_BITS(and_neon, vandq_u32)
#endif

#ifdef X86
#define WITH_AVX2 __attribute__((target("avx2,popcnt,bmi,bmi2")))
#define WITH_AVX512 \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx512vnni,popcnt,bmi,bmi2")))
#define WITH_AMX __attribute__((target("avx512f,avx512bw,amx-tile,amx-int8")))

/* Counts of the bits of each 32-bit lane, by looking up nibbles. */
WITH_AVX2 static inline __m256i count_avx2(__m256i x) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2,
                                           2, 3, 2, 3, 3, 4);
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(x, nibble));
    __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
    __m256i pairs = _mm256_maddubs_epi16(_mm256_add_epi8(low, high), _mm256_set1_epi8(1));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

typedef struct {
    __m256i sum, carry;
} halves;

WITH_AVX2 static inline halves add_bits(__m256i a, __m256i b, __m256i c) {
    __m256i half = _mm256_xor_si256(a, b);
    halves result = {_mm256_xor_si256(half, c), _mm256_or_si256(_mm256_and_si256(a, b), _mm256_and_si256(half, c))};
    return result;
}

WITH_AVX2 static inline __m256i product_avx2(const uint8_t *at, const uint32_t *w, int both) {
    __m256i a = _mm256_set1_epi32((int)word_at(at)), b = _mm256_loadu_si256((const __m256i *)w);
    return both ? _mm256_and_si256(a, b) : _mm256_xor_si256(a, b);
}

/* One position, eight lanes: Harley-Seal over four words. */
WITH_AVX2 static inline void bits_avx2(const uint8_t *at, const int32_t *offsets, int length, const uint32_t *weights,
                                       int32_t *sums, int both) {
    __m256i ones = _mm256_setzero_si256(), twos = ones, fours = ones;
    int k = 0;
    for (; k + 3 < length; k += 4) {
        const uint32_t *w = weights + (size_t)k * LANES;
        halves first =
            add_bits(ones, product_avx2(at + offsets[k], w, both), product_avx2(at + offsets[k + 1], w + LANES, both));
        halves second = add_bits(first.sum, product_avx2(at + offsets[k + 2], w + 2 * LANES, both),
                                 product_avx2(at + offsets[k + 3], w + 3 * LANES, both));
        halves third = add_bits(twos, first.carry, second.carry);
        ones = second.sum;
        twos = third.sum;
        fours = _mm256_add_epi32(fours, count_avx2(third.carry));
    }
    __m256i total = _mm256_add_epi32(_mm256_slli_epi32(fours, 2), _mm256_slli_epi32(count_avx2(twos), 1));
    total = _mm256_add_epi32(total, count_avx2(ones));
    for (; k < length; k++)
        total = _mm256_add_epi32(total, count_avx2(product_avx2(at + offsets[k], weights + (size_t)k * LANES, both)));
    _mm256_storeu_si256((__m256i *)sums, total);
}

WITH_AVX2 static void xor_avx2(const uint8_t *const *at, int positions, const int32_t *offsets, int length,
                               const uint32_t *weights, int32_t *sums) {
    for (int p = 0; p < positions; p++) {
        bits_avx2(at[p], offsets, length, weights, sums + p * LANES, 0);
        bits_avx2(at[p], offsets, length, weights + 8, sums + p * LANES + 8, 0);
    }
}

WITH_AVX2 static void and_avx2(const uint8_t *const *at, int positions, const int32_t *offsets, int length,
                               const uint32_t *weights, int32_t *sums) {
    for (int p = 0; p < positions; p++) {
        bits_avx2(at[p], offsets, length, weights, sums + p * LANES, 1);
        bits_avx2(at[p], offsets, length, weights + 8, sums + p * LANES + 8, 1);
    }
}

/* Weights lie within ±64, so that a pair of products fits 16 bits. */
WITH_AVX2 static void bytes_avx2(const uint8_t *const *at, int positions, const int32_t *offsets, int length,
                                 const uint32_t *weights, int32_t *sums) {
    const __m256i one = _mm256_set1_epi16(1);
    for (int p = 0; p < positions; p += 2) {
        __m256i total[4];
        for (int i = 0; i < 4; i++) total[i] = _mm256_setzero_si256();
        for (int k = 0; k < length; k++) {
            __m256i low = _mm256_loadu_si256((const __m256i *)(weights + (size_t)k * LANES));
            __m256i high = _mm256_loadu_si256((const __m256i *)(weights + (size_t)k * LANES + 8));
            for (int i = 0; i < 2; i++) {
                __m256i a = _mm256_set1_epi32((int)word_at(at[p + i] + offsets[k]));
                total[2 * i] = _mm256_add_epi32(total[2 * i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, low), one));
                total[2 * i + 1] =
                    _mm256_add_epi32(total[2 * i + 1], _mm256_madd_epi16(_mm256_maddubs_epi16(a, high), one));
            }
        }
        for (int i = 0; i < 4; i++) _mm256_storeu_si256((__m256i *)(sums + p * LANES + 8 * i), total[i]);
    }
}

#define CARRY 0x74 /* of s + x1 + x2, from s, s ^ x1 and s ^ x1 ^ x2 */
#define BROADCAST(p) _mm512_set1_epi32((int)word_at(p))

/* A single position: memory decides, so nothing is gained by counting pairs. */
#define ONE_AVX512(NAME, PRODUCT)                                                                                      \
    WITH_AVX512 static inline void NAME(const uint8_t *base, const int32_t *offsets, int length,                       \
                                        const uint32_t *weights, int32_t *sums) {                                      \
        __m512i a = _mm512_setzero_si512(), b = a;                                                                     \
        int k = 0;                                                                                                     \
        for (; k + 1 < length; k += 2) {                                                                               \
            const uint32_t *w = weights + (size_t)k * LANES;                                                           \
            a = PRODUCT(a, BROADCAST(base + offsets[k]), _mm512_loadu_si512(w));                                       \
            b = PRODUCT(b, BROADCAST(base + offsets[k + 1]), _mm512_loadu_si512(w + LANES));                           \
        }                                                                                                              \
        if (k < length) a = PRODUCT(a, BROADCAST(base + offsets[k]), _mm512_loadu_si512(weights + (size_t)k * LANES)); \
        _mm512_storeu_si512(sums, _mm512_add_epi32(a, b));                                                             \
    }
#define COUNT_XOR(total, x, w) _mm512_add_epi32(total, _mm512_popcnt_epi32(_mm512_xor_si512(x, w)))
#define COUNT_AND(total, x, w) _mm512_add_epi32(total, _mm512_popcnt_epi32(_mm512_and_si512(x, w)))
ONE_AVX512(xor_one_avx512, COUNT_XOR)
ONE_AVX512(and_one_avx512, COUNT_AND)
ONE_AVX512(bytes_one_avx512, _mm512_dpbusd_epi32)
#define BITS_AVX512(NAME, TRUTH, PRODUCT, ONE)                                                                   \
    WITH_AVX512 static void NAME(const uint8_t *const *at, int positions, const int32_t *offsets, int length,    \
                                 const uint32_t *weights, int32_t *sums) {                                       \
        if (positions == 1) {                                                                                    \
            ONE(at[0], offsets, length, weights, sums);                                                          \
            return;                                                                                              \
        }                                                                                                        \
        __m512i left[POSITIONS], pairs[POSITIONS];                                                               \
        for (int p = 0; p < POSITIONS; p++) left[p] = pairs[p] = _mm512_setzero_si512();                         \
        int k = 0;                                                                                               \
        for (; k + 1 < length; k += 2) {                                                                         \
            __m512i w = _mm512_loadu_si512(weights + (size_t)k * LANES);                                         \
            __m512i v = _mm512_loadu_si512(weights + (size_t)(k + 1) * LANES);                                   \
            ptrdiff_t first = offsets[k], second = offsets[k + 1];                                               \
            for (int p = 0; p < POSITIONS; p++) {                                                                \
                __m512i y = _mm512_ternarylogic_epi32(left[p], w, BROADCAST(at[p] + first), TRUTH);              \
                __m512i z = _mm512_ternarylogic_epi32(y, v, BROADCAST(at[p] + second), TRUTH);                   \
                __m512i carry = _mm512_ternarylogic_epi32(left[p], y, z, CARRY);                                 \
                pairs[p] = _mm512_add_epi32(pairs[p], _mm512_popcnt_epi32(carry));                               \
                left[p] = z;                                                                                     \
            }                                                                                                    \
        }                                                                                                        \
        for (int p = 0; p < POSITIONS; p++) {                                                                    \
            __m512i total = _mm512_slli_epi32(pairs[p], 1);                                                      \
            total = _mm512_add_epi32(total, _mm512_popcnt_epi32(left[p]));                                       \
            if (k < length) {                                                                                    \
                __m512i w = _mm512_loadu_si512(weights + (size_t)k * LANES);                                     \
                total = _mm512_add_epi32(total, _mm512_popcnt_epi32(PRODUCT(w, BROADCAST(at[p] + offsets[k])))); \
            }                                                                                                    \
            _mm512_storeu_si512(sums + p * LANES, total);                                                        \
        }                                                                                                        \
    }
BITS_AVX512(xor_avx512, 0x96, _mm512_xor_si512, xor_one_avx512)
BITS_AVX512(and_avx512, 0x78, _mm512_and_si512, and_one_avx512)

WITH_AVX512 static void bytes_avx512(const uint8_t *const *at, int positions, const int32_t *offsets, int length,
                                     const uint32_t *weights, int32_t *sums) {
    if (positions == 1) {
        bytes_one_avx512(at[0], offsets, length, weights, sums);
        return;
    }
    __m512i total[POSITIONS];
    for (int p = 0; p < POSITIONS; p++) total[p] = _mm512_setzero_si512();
    for (int k = 0; k < length; k++) {
        __m512i w = _mm512_loadu_si512(weights + (size_t)k * LANES);
        ptrdiff_t offset = offsets[k];
        for (int p = 0; p < POSITIONS; p++) total[p] = _mm512_dpbusd_epi32(total[p], BROADCAST(at[p] + offset), w);
    }
    for (int p = 0; p < POSITIONS; p++) _mm512_storeu_si512(sums + p * LANES, total[p]);
}

#endif

/* ---- From sums to what is stored ---------------------------------------------------------------------------------*/

typedef struct {
    const bqn_op *op;
    int lanes;             /* index of the lane block, over all groups */
    int channel, channels; /* first channel of the lane block, and how many of its lanes are channels */
    uint8_t *target;       /* of the first image */
} finish_at;

typedef void finish_fn(const finish_at *at, int32_t *sums, const int32_t *code_sums, int64_t row, int rows);

/* Which of sixteen lanes have `sum ^ flip > threshold`. */
typedef uint32_t above_fn(const int32_t *sums, const int32_t *flips, const int32_t *thresholds);

static inline uint32_t above_portable(const int32_t *sums, const int32_t *flips, const int32_t *thresholds) {
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; lane++) bits |= (uint32_t)((sums[lane] ^ flips[lane]) > thresholds[lane]) << lane;
    return bits;
}

static inline size_t words_of(int channels) { return ((size_t)channels + 63) / 64; }

static inline void put_16_bits(uint8_t *at, uint32_t bits) {
    const uint16_t low = (uint16_t)bits;
    memcpy(at, &low, sizeof low);
}

/* Set bits from any channel on; the target is zero there. */
static inline void put_bits(uint8_t *plane, int channel, uint32_t bits) {
    bits <<= channel % 8;
    for (uint8_t *byte = plane + channel / 8; bits; bits >>= 8) *byte++ |= (uint8_t)bits;
}

/* Add one to the codes, given by bit-planes, of the lanes in `carry`. */
static inline void add_to_planes(uint32_t *planes, uint32_t carry) {
    for (int p = 0; carry; p++) {
        const uint32_t both = planes[p] & carry;
        planes[p] ^= carry;
        carry = both;
    }
}

typedef void combine_fn(const bqn_op *op, int32_t *sums, const int32_t *code_sums, int rows);

/* Sums over the windows of the pooling in place, (rows, out_width, LANES); scaled if the sums of the codes join them.
 */
static inline __attribute__((always_inline)) void combine(const bqn_op *op, int32_t *sums, const int32_t *code_sums,
                                                          int rows) {
    const uint32_t scale = code_sums ? (uint32_t)op->scale : 1, code_scale = (uint32_t)op->code_scale;
    int32_t *out = sums;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < op->out_width; c++, out += LANES) {
            uint32_t total[LANES] = {0}, codes = 0;
            for (int i = 0; i < op->pool_h; i++)
                for (int j = 0; j < op->pool_w; j++) {
                    const size_t position =
                        (size_t)(r * op->pool_h + i) * (size_t)op->pitch + (size_t)(c * op->pool_w + j);
                    for (int lane = 0; lane < LANES; lane++)
                        total[lane] += (uint32_t)sums[position * LANES + (size_t)lane];
                    if (code_sums) codes += (uint32_t)code_sums[position];
                }
            for (int lane = 0; lane < LANES; lane++) out[lane] = (int32_t)(scale * total[lane] + code_scale * codes);
        }
}

/* `rows` rows of the target from row `row` on, counted over all images; sums are (rows * pool_h, pitch, LANES). */
static inline __attribute__((always_inline)) void finish_body(const finish_at *at, int32_t *sums,
                                                              const int32_t *code_sums, int64_t row, int rows,
                                                              above_fn *above, combine_fn *combine_sums) {
    const bqn_op *op = at->op;
    const int combined = op->pool_h * op->pool_w > 1 || code_sums;
    if (combined) combine_sums(op, sums, code_sums, rows);
    const uint32_t scale = code_sums ? 1 : (uint32_t)op->scale;
    const size_t pitch = (size_t)(combined ? op->out_width : op->pitch);
    const size_t lanes = (size_t)at->lanes * LANES, classes_lanes = lanes * (size_t)op->class_count;
    const int32_t *constants = op->constants ? op->constants + classes_lanes : NULL;
    const int thresholds_each = op->levels - 1;
    const int32_t *thresholds = op->levels ? op->thresholds + classes_lanes * (size_t)thresholds_each : NULL;
    const int32_t *flips = op->levels ? op->flips + lanes : NULL;
    const size_t plane_bytes = 8 * words_of(op->out_channels);
    const size_t pixel_bytes = op->levels ? plane_bytes * (size_t)op->out_planes : 4 * (size_t)op->out_channels;
    const int width = op->out_width, channel = at->channel;
    for (int r = 0; r < rows; r++, sums += pitch * LANES) {
        uint8_t *pixel = at->target + (size_t)(row + r) * (size_t)width * pixel_bytes;
        const int32_t *classes = op->classes + (size_t)((row + r) % op->out_height) * (size_t)width;
        const int32_t *sum = sums;
        if (op->levels == 2 && channel % 16 == 0) { /* the usual case */
            pixel += channel / 8;
            for (int c = 0; c < width; c++, pixel += pixel_bytes, sum += LANES)
                put_16_bits(pixel, above(sum, flips, thresholds + (size_t)classes[c] * LANES));
            continue;
        }
        for (int c = 0; c < width; c++, pixel += pixel_bytes, sum += LANES) {
            if (!op->levels) {
                const int32_t *constant = constants + (size_t)classes[c] * LANES;
                int32_t values[LANES];
                for (int lane = 0; lane < LANES; lane++)
                    values[lane] = (int32_t)((uint32_t)constant[lane] + scale * (uint32_t)sum[lane]);
                memcpy(pixel + 4 * (size_t)channel, values, 4 * (size_t)at->channels);
                continue;
            }
            const int32_t *here = thresholds + (size_t)classes[c] * (size_t)thresholds_each * LANES;
            uint32_t planes[32] = {0};
            for (int t = 0; t < thresholds_each; t++)
                add_to_planes(planes, above(sum, flips, here + (size_t)t * LANES));
            for (int p = 0; p < op->out_planes; p++) put_bits(pixel + (size_t)p * plane_bytes, channel, planes[p]);
        }
    }
}

static void finish_portable(const finish_at *at, int32_t *sums, const int32_t *code_sums, int64_t row, int rows) {
    finish_body(at, sums, code_sums, row, rows, above_portable, combine);
}

#ifdef X86
WITH_AVX2 static inline uint32_t above_avx2(const int32_t *sums, const int32_t *flips, const int32_t *thresholds) {
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; lane += 8) {
        __m256i value = _mm256_loadu_si256((const __m256i *)(sums + lane));
        value = _mm256_xor_si256(value, _mm256_loadu_si256((const __m256i *)(flips + lane)));
        value = _mm256_cmpgt_epi32(value, _mm256_loadu_si256((const __m256i *)(thresholds + lane)));
        bits |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(value)) << lane;
    }
    return bits;
}

WITH_AVX2 static void finish_avx2(const finish_at *at, int32_t *sums, const int32_t *code_sums, int64_t row, int rows) {
    finish_body(at, sums, code_sums, row, rows, above_avx2, combine);
}

WITH_AVX512 static inline uint32_t above_avx512(const int32_t *sums, const int32_t *flips, const int32_t *thresholds) {
    const __m512i value = _mm512_xor_si512(_mm512_loadu_si512(sums), _mm512_loadu_si512(flips));
    return _mm512_cmpgt_epi32_mask(value, _mm512_loadu_si512(thresholds));
}

WITH_AVX512 static inline void combine_avx512(const bqn_op *op, int32_t *sums, const int32_t *code_sums, int rows) {
    const __m512i scale = _mm512_set1_epi32(code_sums ? op->scale : 1);
    const int pool_h = op->pool_h, pool_w = op->pool_w, width = op->out_width;
    const size_t pitch = (size_t)op->pitch;
    int32_t *out = sums;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width; c++, out += LANES) {
            const size_t first = (size_t)(r * pool_h) * pitch + (size_t)(c * pool_w);
            __m512i total = _mm512_setzero_si512();
            uint32_t codes = 0;
            for (int i = 0; i < pool_h; i++)
                for (int j = 0; j < pool_w; j++) {
                    const size_t position = first + (size_t)i * pitch + (size_t)j;
                    total = _mm512_add_epi32(total, _mm512_loadu_si512(sums + position * LANES));
                    if (code_sums) codes += (uint32_t)code_sums[position];
                }
            const __m512i more = _mm512_set1_epi32((int)((uint32_t)op->code_scale * codes));
            _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_mullo_epi32(total, scale), more));
        }
}

WITH_AVX512 static void finish_avx512(const finish_at *at, int32_t *sums, const int32_t *code_sums, int64_t row,
                                      int rows) {
    finish_body(at, sums, code_sums, row, rows, above_avx512, combine_avx512);
}
#endif

/* ---- What a product reads: padded, one group of channels, as bits or as bytes ------------------------------------*/

static inline uint64_t load_word(const uint8_t *words, size_t index) {
    uint64_t word;
    memcpy(&word, words + 8 * index, sizeof word);
    return word;
}

/* At most 64 bits from bit `start` on. */
static inline uint64_t take_bits(const uint8_t *words, int start, int count) {
    const size_t index = (size_t)start / 64;
    const int shift = start % 64;
    uint64_t bits = load_word(words, index) >> shift;
    if (shift && shift + count > 64) bits |= load_word(words, index + 1) << (64 - shift);
    return count < 64 ? bits & ((UINT64_C(1) << count) - 1) : bits;
}

/* Codes of `count` pixels, each (planes, words), to one byte a channel, 64 channels at a time. */
typedef void expand_fn(const uint8_t *source, int count, int planes, int words, uint8_t *target, int pixel_bytes);

static void expand_portable(const uint8_t *source, int count, int planes, int words, uint8_t *target, int pixel_bytes) {
    for (int i = 0; i < count; i++, source += 8 * planes * words, target += pixel_bytes)
        for (int w = 0; w < words; w++) {
            uint64_t out[8] = {0};
            for (int p = 0; p < planes; p++) {
                const uint64_t bits = load_word(source, (size_t)(p * words + w));
                for (int b = 0; b < 8; b++) { /* eight bits to eight bytes */
                    const uint64_t spread =
                        ((bits >> (8 * b) & 255) * UINT64_C(0x0101010101010101)) & UINT64_C(0x8040201008040201);
                    out[b] |= ((spread + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101)) << p;
                }
            }
            const int room = pixel_bytes - 64 * w;
            memcpy(target + 64 * w, out, (size_t)(room < 64 ? room : 64));
        }
}

#ifdef X86
WITH_AVX512 static void expand_avx512(const uint8_t *source, int count, int planes, int words, uint8_t *target,
                                      int pixel_bytes) {
    for (int i = 0; i < count; i++, source += 8 * planes * words, target += pixel_bytes)
        for (int w = 0; w < words; w++) {
            __m512i out = _mm512_setzero_si512();
            for (int p = 0; p < planes; p++)
                out = _mm512_or_si512(
                    out, _mm512_maskz_set1_epi8(load_word(source, (size_t)(p * words + w)), (char)(1u << p)));
            const int room = pixel_bytes - 64 * w;
            _mm512_mask_storeu_epi8(target + 64 * w, room < 64 ? (UINT64_C(1) << room) - 1 : ~UINT64_C(0), out);
        }
}
#endif

/* The channels of one group, as bits that start at a word. */
static void take_group(const bqn_op *op, const uint8_t *source, int group, uint8_t *target, size_t plane_bytes) {
    const int channels = op->channels / op->groups, start = group * channels;
    for (int p = 0; p < op->planes; p++, source += 8 * words_of(op->channels), target += plane_bytes)
        for (int c = 0; c < channels; c += 64) {
            const uint64_t bits = take_bits(source, start + c, channels - c < 64 ? channels - c : 64);
            const size_t room = plane_bytes - (size_t)c / 8;
            memcpy(target + c / 8, &bits, room < 8 ? room : 8);
        }
}

static void prepare_row(const bqn_op *op, const uint8_t *source, int group, uint8_t *target, expand_fn *expand,
                        uint8_t *pixel) {
    const size_t source_pixel = 8 * words_of(op->channels) * (size_t)op->planes;
    const int words = (int)words_of(op->channels / op->groups), bytes = op->mode == BYTES || op->mode == TILES;
    if (bytes && op->groups == 1) {
        expand(source, op->width, op->planes, words, target, op->pixel_bytes);
        return;
    }
    for (int x = 0; x < op->width; x++, source += source_pixel, target += op->pixel_bytes) {
        if (!bytes) {
            take_group(op, source, group, target, (size_t)op->plane_bytes);
            continue;
        }
        take_group(op, source, group, pixel, 8 * (size_t)words);
        expand(pixel, 1, op->planes, words, target, op->pixel_bytes);
    }
}

/* Pixels (C, H, W) to (H, W, C). */
static void prepare_row_of_pixels(const bqn_op *op, const uint8_t *image, int group, int y, uint8_t *target) {
    const int channels = op->channels / op->groups;
    const size_t plane = (size_t)op->height * (size_t)op->width;
    if (plane == 1) {
        memcpy(target, image + (size_t)(group * channels), (size_t)channels);
        memset(target + channels, 0, (size_t)(op->pixel_bytes - channels));
        return;
    }
    for (int c = 0; c < channels; c++) {
        const uint8_t *row = image + (size_t)(group * channels + c) * plane + (size_t)y * (size_t)op->width;
        for (int x = 0; x < op->width; x++) target[(size_t)x * (size_t)op->pixel_bytes + (size_t)c] = row[x];
    }
    for (int c = channels; c < op->pixel_bytes; c++)
        for (int x = 0; x < op->width; x++) target[(size_t)x * (size_t)op->pixel_bytes + (size_t)c] = 0;
}

/* `pixel` has room for one pixel of a group. */
static void prepare(const bqn_op *op, const uint8_t *image, int group, uint8_t *target, expand_fn *expand,
                    uint8_t *pixel) {
    const size_t row_bytes = (size_t)op->padded_width * (size_t)op->pixel_bytes;
    const size_t source_row = 8 * words_of(op->channels) * (size_t)op->planes * (size_t)op->width;
    const size_t left = (size_t)op->pad_w * (size_t)op->pixel_bytes,
                 inside = (size_t)op->width * (size_t)op->pixel_bytes;
    for (int y = 0; y < op->padded_height; y++, target += row_bytes) {
        const int from = y - op->pad_h;
        if (from < 0 || from >= op->height) {
            memset(target, 0, row_bytes);
            continue;
        }
        memset(target, 0, left);
        memset(target + left + inside, 0, row_bytes - left - inside);
        if (op->raw)
            prepare_row_of_pixels(op, image, group, from, target + left);
        else
            prepare_row(op, image + (size_t)from * source_row, group, target + left, expand, pixel);
    }
}

/* The windows of a prepared image of few channels, one after the other: (rows * columns, patch_bytes). What stands
 * behind a window in its patch is arbitrary, and multiplied by zeros. Copies of a fixed size are quick, and may write
 * further than they should, within the patch: the next piece mends that. */
static void copy_patches(const bqn_op *op, const uint8_t *image, uint8_t *target) {
    const size_t pixel = (size_t)op->pixel_bytes, row_bytes = (size_t)op->padded_width * pixel;
    const int joined = op->dilation_w == 1, pieces = joined ? 1 : op->kernel_w;
    const size_t piece = joined ? (size_t)op->kernel_w * pixel : pixel, down = (size_t)op->dilation_h * row_bytes;
    const size_t along = (size_t)op->dilation_w * pixel, step = (size_t)op->stride_w * pixel;
    const size_t patch = (size_t)op->patch_bytes;
    const int kernel_h = op->kernel_h, columns = op->columns;
    for (int y = 0; y < op->rows; y++, target += (size_t)columns * patch)
        for (int i = 0; i < kernel_h; i++)
            for (int j = 0; j < pieces; j++) {
                const uint8_t *from =
                    image + (size_t)(y * op->stride_h) * row_bytes + (size_t)i * down + (size_t)j * along;
                const size_t place = (size_t)(i * pieces + j) * piece;
                uint8_t *to = target + place;
                if (piece <= 16 && place + 16 <= patch)
                    for (int x = 0; x < columns; x++) memcpy(to + (size_t)x * patch, from + (size_t)x * step, 16);
                else
                    for (int x = 0; x < columns; x++) memcpy(to + (size_t)x * patch, from + (size_t)x * step, piece);
            }
}

/* ---- Products ----------------------------------------------------------------------------------------------------*/

typedef void widen_fn(const uint64_t *bits, size_t count, int low, int high, uint8_t *bytes);
typedef void tiles_fn(const bqn_op *op, const uint8_t *image, int row, int rows, const uint8_t *weights, int32_t *sums);

typedef struct {
    const char *name;
    inner_fn *inner[3];
    finish_fn *finish;
    expand_fn *expand;
    tiles_fn *tiles;
    widen_fn *widen;
} kernels;

#ifdef X86
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

#define EIGHT(x) x, x, x, x, x, x, x, x
static const tile_config EIGHT_TILES = {1, 0, {0}, {EIGHT(64)}, {EIGHT(TILE_ROWS)}};

WITH_AMX static void tiles_begin(void) { _tile_loadconfig(&EIGHT_TILES); }

/* Weights of one bit, as bytes: they take an eighth of the way from memory. */
WITH_AVX512 static void widen_avx512(const uint64_t *bits, size_t count, int low, int high, uint8_t *bytes) {
    const __m512i zeros = _mm512_set1_epi8((char)low), ones = _mm512_set1_epi8((char)high);
    for (size_t i = 0; i < count; i++)
        _mm512_storeu_si512(bytes + 64 * i, _mm512_mask_blend_epi8(bits[i], zeros, ones));
}

WITH_AMX static void tiles_end(void) { _tile_release(); }

#define TILE_STEP(n, input, weight)                       \
    if (n < count) {                                      \
        _tile_loadd(input, at[n] + op->offsets[k], step); \
        _tile_dpbusd(n, input, weight);                   \
    }
#define TILE_BEGIN(n) \
    if (n < count) _tile_zero(n);
#define TILE_END(n) \
    if (n < count) _tile_stored(n, sums + n * TILE_ROWS * LANES, 64);

/* `count` tiles of 16 positions x 16 channels, which share each tile of weights. */
WITH_AMX static inline __attribute__((always_inline)) void some_tiles(const bqn_op *op, const uint8_t *const *at,
                                                                      const uint8_t *weights, int32_t *sums,
                                                                      const int count) {
    const long step = op->column_step;
    TILE_BEGIN(0)
    TILE_BEGIN(1) TILE_BEGIN(2) TILE_BEGIN(3) TILE_BEGIN(4) TILE_BEGIN(5) for (int k = 0; k < op->length; k++) {
        const uint8_t *weight = weights + (size_t)k * 1024;
        if (count <= 4) { /* the registers that hold no sums take turns */
            _tile_loadd(4, weight, 64);
            TILE_STEP(0, 5, 4) TILE_STEP(1, 6, 4) TILE_STEP(2, 7, 4) TILE_STEP(3, 5, 4)
        } else if (count == 5) {
            _tile_loadd(5, weight, 64);
            TILE_STEP(0, 6, 5) TILE_STEP(1, 7, 5) TILE_STEP(2, 6, 5) TILE_STEP(3, 7, 5) TILE_STEP(4, 6, 5)
        } else {
            _tile_loadd(6, weight, 64);
            TILE_STEP(0, 7, 6)
            TILE_STEP(1, 7, 6) TILE_STEP(2, 7, 6) TILE_STEP(3, 7, 6) TILE_STEP(4, 7, 6) TILE_STEP(5, 7, 6)
        }
    }
    TILE_END(0) TILE_END(1) TILE_END(2) TILE_END(3) TILE_END(4) TILE_END(5)
}

/* Sums of rows of one image. Four tiles at a time hide the latency of the products; up to six are left for the end. */
WITH_AMX static void tiles_amx(const bqn_op *op, const uint8_t *image, int row, int rows, const uint8_t *weights,
                               int32_t *sums) {
    int left = ((rows - 1) * op->pitch + op->columns + TILE_ROWS - 1) / TILE_ROWS;
    for (int position = 0; left > 0;) {
        const int count = left <= 6 ? left : 4;
        const uint8_t *at[6];
        int32_t *out = sums + (size_t)position * LANES;
        for (int t = 0; t < count; t++, position += TILE_ROWS)
            at[t] = image + (ptrdiff_t)(row + position / op->pitch) * op->row_step +
                    (ptrdiff_t)(position % op->pitch) * op->column_step;
        switch (count) {
            case 1: some_tiles(op, at, weights, out, 1); break;
            case 2: some_tiles(op, at, weights, out, 2); break;
            case 3: some_tiles(op, at, weights, out, 3); break;
            case 4: some_tiles(op, at, weights, out, 4); break;
            case 5: some_tiles(op, at, weights, out, 5); break;
            default: some_tiles(op, at, weights, out, 6); break;
        }
        left -= count;
    }
}
#endif

/* Rows of the target whose sums are kept together. */
static int rows_together(const bqn_op *op) {
    int rows = BLOCK / (op->pitch * op->pool_h);
    return rows > 1 ? rows : 1;
}

typedef struct {
    int64_t image;
    int y, x;
} cursor;

static inline const uint8_t *here_then_next(const bqn_op *op, const uint8_t *base, cursor *at) {
    const uint8_t *here =
        base + at->image * op->image_bytes + (ptrdiff_t)at->y * op->row_step + (ptrdiff_t)at->x * op->column_step;
    if (++at->x == op->columns) {
        at->x = 0;
        if (++at->y == op->rows) {
            at->y = 0;
            at->image++;
        }
    }
    return here;
}

static void add_code_sums(const bqn_op *op, const uint8_t *base, int64_t images, int32_t *code_sums) {
    cursor at = {0, 0, 0};
    for (int64_t q = 0; q < images * op->rows * op->columns; q++) {
        const uint8_t *here = here_then_next(op, base, &at);
        uint32_t sum = 0;
        for (int p = 0; p < op->planes; p++, here += op->plane_bytes)
            for (int k = 0; k < op->length; k++) sum += count_bits(word_at(here + op->offsets[k])) << p;
        code_sums[q] = (int32_t)sum;
    }
}

/* Sums of `count` positions from `first` on, counted over all images. */
static void sum_positions(const bqn_op *op, const kernels *with, const uint8_t *base, int64_t first, int count,
                          const uint32_t *weights, int32_t *sums) {
    const int64_t per_image = (int64_t)op->rows * op->columns;
    const size_t plane_words = (size_t)op->length * LANES;
    cursor next = {first / per_image, (int)(first % per_image / op->columns), (int)(first % op->columns)};
    for (int q = 0; q < count; q += POSITIONS) {
        const uint8_t *at[POSITIONS] = {NULL};
        const int positions = count - q < POSITIONS ? count - q : POSITIONS;
        if (positions == POSITIONS && next.x + POSITIONS < op->columns) { /* all in one row */
            const uint8_t *here = base + next.image * op->image_bytes + (ptrdiff_t)next.y * op->row_step +
                                  (ptrdiff_t)next.x * op->column_step;
            for (int p = 0; p < POSITIONS; p++) at[p] = here + (ptrdiff_t)p * op->column_step;
            next.x += POSITIONS;
        } else {
            for (int p = 0; p < POSITIONS; p++) at[p] = p < positions ? here_then_next(op, base, &next) : at[0];
        }
        int32_t *out = sums + (size_t)q * LANES;
        inner_fn *inner = with->inner[op->mode];
        inner(at, positions, op->offsets, op->length, weights, out);
        if (op->mode == BYTES || op->planes * op->weight_planes == 1) continue;
        for (int a = 0; a < op->planes; a++) {
            for (int w = a == 0; w < op->weight_planes; w++) {
                int32_t more[POSITIONS * LANES];
                inner(at, positions, op->offsets, op->length, weights + (size_t)w * plane_words, more);
                for (int i = 0; i < positions * LANES; i++)
                    out[i] = (int32_t)((uint32_t)out[i] + ((uint32_t)more[i] << (a + w)));
            }
            for (int p = 0; p < POSITIONS; p++) at[p] += op->plane_bytes;
        }
    }
}

static void product_of_group(const bqn_op *op, const kernels *with, const uint8_t *base, int64_t images, int group,
                             uint8_t *target, int32_t *code_sums, int32_t *sums, uint8_t *widened) {
    const int channels = op->out_channels / op->groups, blocks = (channels + LANES - 1) / LANES;
    const int together = rows_together(op);
    if (op->code_scale) add_code_sums(op, base, images, code_sums);
    for (int block = 0; block < blocks; block++) {
        const int lanes = group * blocks + block, left = channels - block * LANES;
        const finish_at at = {op, lanes, group * channels + block * LANES, left < LANES ? left : LANES, target};
        const size_t words =
            (size_t)op->weight_planes * (size_t)op->length * LANES * (op->mode == TILES ? TILE_ROWS : 1);
        const uint32_t *weights = (const uint32_t *)op->weights + (size_t)lanes * words;
        if (op->one_bit) {
            with->widen((const uint64_t *)op->weights + (size_t)lanes * words / LANES, words / LANES, op->low,
                        op->low + op->step, widened);
            weights = (const uint32_t *)(const void *)widened;
        }
        /* A run of rows may span images, except where tiles step through the positions of one image. */
        const int single = op->rows * op->columns == 1;
        const int64_t span = op->mode == TILES && !single ? op->out_height : images * op->out_height;
        for (int64_t start = 0; start < images * op->out_height; start += span)
            for (int64_t row = start; row < start + span; row += together) {
                const int rows = (int)(start + span - row < together ? start + span - row : together);
                const int64_t first = row * op->pool_h * op->columns;
                if (op->mode == TILES)
                    with->tiles(op, single ? base : base + row / op->out_height * op->image_bytes,
                                (int)(single ? row : row % op->out_height) * op->pool_h, rows * op->pool_h,
                                (const uint8_t *)weights, sums);
                else
                    sum_positions(op, with, base, first, rows * op->pool_h * op->columns, weights, sums);
                with->finish(&at, sums, op->code_scale ? code_sums + first : NULL, row, rows);
            }
    }
}

/* Sizes of the parts of the scratch, which Layout.scratch in _layout.py computes in the same way. */
static size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

static void product(const bqn_op *op, const kernels *with, const uint8_t *source, size_t source_bytes, int64_t images,
                    uint8_t *target, size_t target_bytes, uint8_t *scratch) {
    const size_t positions = ((size_t)rows_together(op) * (size_t)op->pool_h * (size_t)op->pitch + 4 * TILE_ROWS);
    int32_t *sums = (int32_t *)scratch;
    int32_t *code_sums = (int32_t *)(scratch + align64(positions * LANES * 4));
    uint8_t *prepared = (uint8_t *)code_sums;
    if (op->code_scale) prepared += align64((size_t)op->block * (size_t)op->rows * (size_t)op->columns * 4);
    uint8_t *widened = prepared;
    if (op->one_bit) prepared += (size_t)op->length * TILE_ROWS * 64;
    uint8_t *pixel = prepared;
    if (op->groups > 1) prepared += align64(8 * words_of(op->channels) * (size_t)op->planes);
    uint8_t *padded = prepared;
    if (op->patch_bytes)
        prepared += align64((size_t)op->padded_height * (size_t)(op->padded_width * op->pixel_bytes) + 64);
    if (op->levels) memset(target, 0, target_bytes * (size_t)images);
#ifdef X86
    if (op->mode == TILES) tiles_begin();
#endif
    for (int64_t first = 0; first < images; first += op->block) {
        const int64_t count = images - first < op->block ? images - first : op->block;
        const uint8_t *from = source + (size_t)first * source_bytes;
        uint8_t *to = target + (size_t)first * target_bytes;
        for (int group = 0; group < op->groups; group++) {
            for (int64_t i = 0; i < count && !op->direct; i++) {
                uint8_t *image = prepared + (size_t)(i * op->image_bytes);
                prepare(op, from + (size_t)i * source_bytes, group, op->patch_bytes ? padded : image, with->expand,
                        pixel);
                if (op->patch_bytes) copy_patches(op, padded, image);
            }
            product_of_group(op, with, op->direct ? from : prepared, count, group, to, code_sums, sums, widened);
        }
    }
#ifdef X86
    if (op->mode == TILES) tiles_end();
#endif
}

/* ---- The operations without weights, one image at a time ---------------------------------------------------------*/

static uint32_t code_at(const uint8_t *pixel, int channel, int planes, size_t plane_bytes) {
    uint32_t code = 0;
    for (int p = 0; p < planes; p++)
        code |= (uint32_t)(pixel[(size_t)p * plane_bytes + (size_t)channel / 8] >> (channel % 8) & 1) << p;
    return code;
}

static void put_code(uint8_t *pixel, int channel, uint32_t code, size_t plane_bytes) {
    for (int p = 0; code >> p; p++)
        pixel[(size_t)p * plane_bytes + (size_t)channel / 8] |= (uint8_t)((code >> p & 1) << (channel % 8));
}

static void pack_pixels(const bqn_op *op, const uint8_t *source, uint8_t *target) {
    const size_t plane_bytes = 8 * words_of(op->channels), count = (size_t)op->height * (size_t)op->width;
    for (size_t i = 0; i < count; i++)
        for (int c = 0; c < op->channels; c++)
            put_code(target + i * 8 * plane_bytes, c, source[(size_t)c * count + i], plane_bytes);
}

static void decode(const bqn_op *op, const uint8_t *source, int32_t *target) {
    const size_t plane_bytes = 8 * words_of(op->channels), count = (size_t)op->height * (size_t)op->width;
    for (size_t i = 0; i < count; i++, source += plane_bytes * (size_t)op->planes)
        for (int c = 0; c < op->channels; c++)
            *target++ = op->low + op->step * (int32_t)code_at(source, c, op->planes, plane_bytes);
}

static void encode(const bqn_op *op, const int32_t *source, uint8_t *target) {
    const size_t plane_bytes = 8 * words_of(op->channels), count = (size_t)op->height * (size_t)op->width;
    for (size_t i = 0; i < count; i++, target += plane_bytes * (size_t)op->out_planes)
        for (int c = 0; c < op->channels; c++)
            put_code(target, c, (uint32_t)((*source++ - op->low) / op->step), plane_bytes);
}

static void threshold(const bqn_op *op, const kernels *with, const int32_t *source, const uint8_t *selector,
                      uint8_t *target) {
    const size_t channels = (size_t)op->channels;
    const size_t count = (size_t)op->height * (size_t)op->width, plane_bytes = 8 * words_of(op->channels);
    if (!selector) { /* every pixel is finished like an image of its own that a product made */
        bqn_op pixel = *op;
        pixel.out_height = pixel.out_width = 1;
        for (size_t i = 0; i < count; i++, target += plane_bytes * (size_t)op->out_planes, source += channels)
            for (int lanes = 0; lanes * LANES < op->channels; lanes++) {
                const int left = op->channels - lanes * LANES;
                const finish_at at = {&pixel, lanes, lanes * LANES, left < LANES ? left : LANES, target};
                int32_t sums[LANES] = {0};
                memcpy(sums, source + (size_t)lanes * LANES, 4 * (size_t)at.channels);
                with->finish(&at, sums, NULL, 0, 1);
            }
        return;
    }
    const size_t each = (size_t)(op->levels - 1), cases = (size_t)op->class_count;
    for (size_t i = 0; i < count; i++, target += plane_bytes * (size_t)op->out_planes, source += channels)
        for (size_t c = 0; c < channels; c++) {
            const uint32_t chosen =
                code_at(selector + i * plane_bytes * (size_t)op->planes, (int)c, op->planes, plane_bytes);
            const int32_t *thresholds = op->thresholds + (c / LANES * cases + chosen) * each * LANES + c % LANES;
            const int32_t value = source[c] ^ op->flips[c];
            uint32_t code = 0;
            for (size_t t = 0; t < each; t++) code += value > thresholds[t * LANES];
            put_code(target, (int)c, code, plane_bytes);
        }
}

static void pool(const bqn_op *op, const int32_t *source, int32_t *target) {
    const size_t channels = (size_t)op->channels;
    for (int y = 0; y < op->out_height; y++)
        for (int x = 0; x < op->out_width; x++, target += channels) {
            for (size_t c = 0; c < channels; c++) target[c] = op->kind == MAX_POOL ? INT32_MIN : 0;
            for (int i = 0; i < op->kernel_h; i++)
                for (int j = 0; j < op->kernel_w; j++) {
                    const int row = y * op->stride_h + i - op->pad_h, column = x * op->stride_w + j - op->pad_w;
                    if (row < 0 || row >= op->height || column < 0 || column >= op->width) continue;
                    const int32_t *from = source + ((size_t)row * (size_t)op->width + (size_t)column) * channels;
                    if (op->kind == MAX_POOL)
                        for (size_t c = 0; c < channels; c++) target[c] = from[c] > target[c] ? from[c] : target[c];
                    else
                        for (size_t c = 0; c < channels; c++)
                            target[c] = (int32_t)((uint32_t)target[c] + (uint32_t)from[c]);
                }
        }
}

/* The maximum of one-bit codes. */
static void or_pool(const bqn_op *op, const uint64_t *source, uint64_t *target) {
    const size_t words = words_of(op->channels);
    for (int y = 0; y < op->out_height; y++)
        for (int x = 0; x < op->out_width; x++, target += words) {
            memset(target, 0, 8 * words);
            for (int i = 0; i < op->kernel_h; i++)
                for (int j = 0; j < op->kernel_w; j++) {
                    const int row = y * op->stride_h + i - op->pad_h, column = x * op->stride_w + j - op->pad_w;
                    if (row < 0 || row >= op->height || column < 0 || column >= op->width) continue;
                    const uint64_t *from = source + ((size_t)row * (size_t)op->width + (size_t)column) * words;
                    for (size_t w = 0; w < words; w++) target[w] |= from[w];
                }
        }
}

static void add(const bqn_op *op, const int32_t *a, const int32_t *b, int32_t *target) {
    const size_t count = (size_t)op->height * (size_t)op->width * (size_t)op->channels;
    const uint32_t fa = (uint32_t)op->factor_a, fb = (uint32_t)op->factor_b;
    for (size_t i = 0; i < count; i++) target[i] = (int32_t)(fa * (uint32_t)a[i] + fb * (uint32_t)b[i]);
}

static void flatten(const bqn_op *op, const int32_t *source, int32_t *target) {
    const size_t positions = (size_t)op->height * (size_t)op->width;
    for (size_t i = 0; i < positions; i++)
        for (int c = 0; c < op->channels; c++) target[(size_t)c * positions + i] = *source++;
}

/* ---- Plans -------------------------------------------------------------------------------------------------------*/

typedef struct {
    const bqn_plan *plan;
    const kernels *with;
    const uint8_t *input;
    uint8_t *output, *arena;
    int64_t images;
} job;

static uint8_t *place(const job *work, int value, int64_t first) {
    const bqn_value *at = work->plan->values + value;
    if (at->offset == -1) return (uint8_t *)(uintptr_t)work->input + first * at->bytes;
    if (at->offset == -2) return work->output + first * at->bytes;
    return work->arena + at->offset * work->plan->chunk;
}

static void run_op(const job *work, const bqn_op *op, int64_t first, int64_t images) {
    const bqn_value *values = work->plan->values;
    const uint8_t *source = place(work, op->source, first);
    const uint8_t *second = op->second < 0 ? NULL : place(work, op->second, first);
    uint8_t *target = place(work, op->target, first);
    const size_t from = (size_t)values[op->source].bytes, to = (size_t)values[op->target].bytes;
    if (op->kind == PRODUCT) {
        product(op, work->with, source, from, images, target, to, work->arena + work->plan->values_bytes);
        return;
    }
    if (op->kind == PACK || op->kind == ENCODE || op->kind == THRESHOLD) memset(target, 0, to * (size_t)images);
    for (int64_t i = 0; i < images; i++, source += from, target += to) {
        const int32_t *integers = (const int32_t *)(const void *)source;
        int32_t *out = (int32_t *)(void *)target;
        const uint8_t *other = second ? second + (size_t)i * (size_t)values[op->second].bytes : NULL;
        switch (op->kind) {
            case PACK: pack_pixels(op, source, target); break;
            case THRESHOLD: threshold(op, work->with, integers, other, target); break;
            case ENCODE: encode(op, integers, target); break;
            case DECODE: decode(op, source, out); break;
            case SUM_POOL:
            case MAX_POOL: pool(op, integers, out); break;
            case OR_POOL: or_pool(op, (const uint64_t *)(const void *)source, (uint64_t *)(void *)target); break;
            case ADD: add(op, integers, (const int32_t *)(const void *)other, out); break;
            case FLATTEN: flatten(op, integers, out); break;
        }
    }
}

static void *run_job(void *argument) {
    const job *work = argument;
    for (int64_t first = 0; first < work->images; first += work->plan->chunk) {
        const int64_t left = work->images - first;
        for (int64_t i = 0; i < work->plan->count; i++)
            run_op(work, work->plan->ops + i, first, left < work->plan->chunk ? left : work->plan->chunk);
    }
    return NULL;
}

static const kernels SETS[] = {
    [PORTABLE] =
        {"portable", {xor_portable, and_portable, bytes_portable}, finish_portable, expand_portable, NULL, NULL},
#if defined(X86)
    [AVX2] = {"avx2", {xor_avx2, and_avx2, bytes_avx2}, finish_avx2, expand_portable, NULL, NULL},
    [AVX512] = {"avx512", {xor_avx512, and_avx512, bytes_avx512}, finish_avx512, expand_avx512, NULL, NULL},
    [AMX] = {"amx", {xor_avx512, and_avx512, bytes_avx512}, finish_avx512, expand_avx512, tiles_amx, widen_avx512},
#elif defined(__ARM_NEON)
    [NEON] = {"neon", {xor_neon, and_neon, bytes_portable}, finish_portable, expand_portable, NULL, NULL},
#endif
};

#ifdef X86
/* The processor must have tiles, and Linux must let this process use them. */
static int has_amx(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 25 & 1)) return 0;
#ifdef SYS_arch_prctl
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
#else
    return 0;
#endif
}
#endif

/* Whether this machine has an instruction set. */
int bqn_supports(int set) {
    if (set == PORTABLE) return 1;
#ifdef X86
    __builtin_cpu_init();
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vnni");
    if (set == AVX2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
    if (set == AVX512) return avx512;
    if (set == AMX) return avx512 && has_amx();
#elif defined(__ARM_NEON)
    if (set == NEON) return 1;
#endif
    return 0;
}

#define MAX_THREADS 256

/* Run a plan. `arena` has `threads` times `arena_bytes`, aligned to 64 bytes. */
void bqn_run(const bqn_plan *plan, int set, int threads, const uint8_t *input, int64_t images, uint8_t *output,
             uint8_t *arena) {
    job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    int started[MAX_THREADS] = {0};
    const int64_t in = plan->values[plan->ops[0].source].bytes,
                  out = plan->values[plan->ops[plan->count - 1].target].bytes;
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    for (int t = 0; t < threads; t++) {
        const int64_t from = images * t / threads, to = images * (t + 1) / threads;
        jobs[t] =
            (job){plan, SETS + set, input + from * in, output + from * out, arena + t * plan->arena_bytes, to - from};
    }
    for (int t = 1; t < threads; t++) started[t] = pthread_create(ids + t, NULL, run_job, jobs + t) == 0;
    run_job(jobs);
    for (int t = 1; t < threads; t++) {
        if (started[t])
            pthread_join(ids[t], NULL);
        else
            run_job(jobs + t);
    }
}
